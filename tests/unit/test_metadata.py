# SPDX-License-Identifier: Apache-2.0
"""Package metadata: exactly the supported frameworks have extras, in this package and in `horovod`."""

import re

import pytest
from testkit.places import ROOT

tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
POINTER = tomllib.loads((ROOT / "packaging" / "horovod" / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_framework_has_an_extra_and_every_extra_has_code():
    extras = set(PROJECT["optional-dependencies"])
    frameworks = {"torch", "tensorflow", "keras", "jax", "mxnet"}
    assert frameworks <= extras
    ours = {"examples", "test", "test-torch", "dev", "docs", "mpi", "ray"}
    assert extras - frameworks - ours == {"pytorch", "all-frameworks"}  # aliases that Horovod's users know


@pytest.mark.parametrize("project", [PROJECT, POINTER], ids=["khorovod", "horovod"])
def test_extras_name_extras_that_exist(project):
    named = {
        extra.strip()
        for wanted in project["optional-dependencies"].values()
        for requirement in wanted
        for match in re.findall(r"^khorovod\[(.*)\]", requirement)
        for extra in match.split(",")
    }
    assert named
    assert named <= set(PROJECT["optional-dependencies"])


def test_pip_shows_where_to_look_and_what_it_runs_on():
    assert all(url.startswith("https://") for url in PROJECT["urls"].values())
    least = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {least}" in PROJECT["classifiers"]
    assert PROJECT["version"] == POINTER["version"]
