# SPDX-License-Identifier: Apache-2.0
"""The table of arguments in docs/local-sgd.md has the defaults that the code has."""

import dataclasses
import re

from testkit.places import ROOT

from horovod.common.local_sgd import Options, OuterSgd


def test_the_page_has_the_defaults_of_the_code() -> None:
    page = (ROOT / "docs" / "local-sgd.md").read_text(encoding="utf-8")
    shown = {name: text.strip() for name, text in re.findall(r"^\| `(\w+)` \| ([^|]*)\|", page, re.MULTILINE)}
    options = Options(every=1)
    fields = [field.name for field in dataclasses.fields(Options)]
    assert sorted(shown) == sorted(fields)
    outer = OuterSgd()
    rule = f"`lr={outer.lr}`, `momentum={outer.momentum}`, `nesterov={outer.nesterov}`"
    expected = {"every": "none", "every_seconds": "none", "outer": rule, "process_set": "all ranks"}
    for name in fields:
        value = getattr(options, name)
        text = expected.get(name, f'`"{value}"`' if isinstance(value, str) else str(value))
        assert shown[name] == text, name
