# SPDX-License-Identifier: Apache-2.0
"""docs/settings.md says what the table of settings says."""

import sys

from testkit.places import ROOT
from testkit.processes import run


def test_the_page_is_up_to_date():
    made = run([sys.executable, str(ROOT / "scripts" / "settings-docs")])
    assert made.returncode == 0, made.stderr
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == made.stdout, "run: scripts/settings-docs > docs/settings.md"
