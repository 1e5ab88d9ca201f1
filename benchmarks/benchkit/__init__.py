# SPDX-License-Identifier: Apache-2.0
"""Shared code of the benchmarks. They run as `python benchmarks/NAME.py` from a checkout, without installing it.

Python finds this package beside the script. This file adds the folder of testkit, which the tests use, too.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
