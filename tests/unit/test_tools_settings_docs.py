# SPDX-License-Identifier: Apache-2.0
"""docs/settings.md says what the table of settings says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date():
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "settings-docs")], capture_output=True, text=True, check=True
    )
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == made.stdout, "run: scripts/settings-docs > docs/settings.md"
