# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share. They run as `python benchmarks/NAME.py` from a checkout, with nothing of it installed.

So Python finds this package beside the command; where testkit is, which the tests share too, it learns here, once.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
