# SPDX-License-Identifier: Apache-2.0
"""The rules for warnings hold in ranks as in pytest's process: Horovod's warnings fail a test, a framework's do not."""

import importlib.metadata
import warnings

import numpy as np
import pytest
import warning_rules
from harness.worlds import on_all_ranks

import horovod.numpy as hvd
from horovod.common.exceptions import HorovodDeprecationWarning, HorovodWarning


def warn_of(module, category):
    """Issue a warning that seems to come from this module."""
    warnings.warn_explicit("a test of warnings", category, "somewhere.py", 1, module=module)


def check_rules():
    with pytest.raises(HorovodWarning):
        warnings.warn("ours", HorovodWarning, stacklevel=1)
    with pytest.raises(HorovodWarning):
        warn_of("torch.optim", HorovodWarning)  # attributed to the module that calls Horovod
    with warnings.catch_warnings(record=True) as foreign:  # recording does not change which warnings are errors
        for category in (DeprecationWarning, FutureWarning, RuntimeWarning, UserWarning):
            warn_of("torch.jit._script", category)
            warn_of("numpy", category)
    assert len(foreign) == 8
    for module in ("horovod.torch.functions", __name__):
        if warning_rules.frameworks_are_pinned():
            with pytest.raises(DeprecationWarning):
                warn_of(module, DeprecationWarning)
        else:
            with warnings.catch_warnings(record=True):
                warn_of(module, DeprecationWarning)


def test_the_rules_hold_in_this_process():
    check_rules()


@on_all_ranks("one")
def test_the_rules_hold_in_a_rank():
    check_rules()
    with pytest.raises(HorovodDeprecationWarning, match="average is deprecated"):
        hvd.allreduce(np.ones(1), average=True)


@pytest.mark.parametrize(("version", "pinned"), [("2.13.0+cpu", True), ("2.13.0", True), ("2.11.0", False)])
def test_another_version_of_a_framework_may_say_what_it_likes(monkeypatch, tmp_path, version, pinned):
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("# ours\nnumpy==2.0 ; python_version >= '3.11'\ntorch==2.13.0\n")

    def installed(name):
        versions = {"numpy": "2.0", "torch": version}
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(warning_rules, "_PINS", constraints)
    monkeypatch.setattr(importlib.metadata, "version", installed)
    assert warning_rules.frameworks_are_pinned() is pinned
    assert any(line.startswith("error:::(horovod|") for line in warning_rules.for_pytest()) is pinned
