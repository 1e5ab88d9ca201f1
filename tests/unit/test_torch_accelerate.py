# SPDX-License-Identifier: Apache-2.0
"""When Accelerate is told to use the CPU: in which processes, on which machines, and at which import."""

import importlib
import importlib.util
import os
import sys
from types import SimpleNamespace

import pytest

from horovod import accelerate_on_cpu
from horovod.common import torchrun_variables, user_warnings
from horovod.common.exceptions import HorovodWarning

PLACE = {"RANK": 1, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}
USE_CPU, DEEPSPEED = accelerate_on_cpu.VARIABLE, "ACCELERATE_USE_DEEPSPEED"
# The relevant parts of Accelerate: a package that imports submodules, and two classes with a common state.
STATE = """
import os
class PartialState:
    _shared_state = {}
    def __init__(self, cpu=False, **kwargs):
        if not self.initialized:
            self._shared_state.update(cpu=cpu, num_processes=4 if cpu else 1)
        self.__dict__ = self._shared_state
    initialized = property(lambda self: bool(self._shared_state))
class AcceleratorState:
    def __init__(self, cpu=False):
        self.state = PartialState(cpu or os.environ.get("ACCELERATE_USE_CPU") == "true")
"""


@pytest.fixture
def worker(monkeypatch):
    """Set the variables of rank 1 of 4, on a machine without accelerators or settings of Accelerate."""
    for name in (*torchrun_variables.NAMES, torchrun_variables.MARK, "TORCHELASTIC_RUN_ID", "HOROVOD_SIZE", DEEPSPEED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(USE_CPU, "to be put back")
    monkeypatch.delenv(USE_CPU)
    wanted = torchrun_variables.variables(PLACE, "127.0.0.1", 20001)
    for name, value in torchrun_variables.settable(wanted, {}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(user_warnings, "_said", set())
    monkeypatch.setattr(accelerate_on_cpu, "_is_set_by_us", False)
    monkeypatch.setattr(accelerate_on_cpu, "_may_have_accelerator", lambda: False)
    return monkeypatch


@pytest.fixture
def package(worker, tmp_path):
    """Create an importable package `accelerate` and a new import hook that watches for it."""
    folder = tmp_path / "accelerate"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import os\nfrom . import first\nfound = os.environ.get('ACCELERATE_USE_CPU')\nfrom . import state, last\n"
    )
    (folder / "state.py").write_text(STATE)
    for name in ("first", "last"):
        (folder / f"{name}.py").write_text("")
    for name in [name for name in sys.modules if name.partition(".")[0] == "accelerate"]:
        worker.delitem(sys.modules, name)
    watch = accelerate_on_cpu._ImportWatch()
    worker.setattr(accelerate_on_cpu, "_import_watch", watch)
    worker.setattr(sys, "meta_path", list(sys.meta_path))
    worker.syspath_prepend(str(tmp_path))
    yield worker
    for name in [name for name in sys.modules if name.partition(".")[0] == "accelerate"]:
        del sys.modules[name]


def told():
    accelerate_on_cpu.tell_accelerate()
    return os.environ.get(USE_CPU)


def test_a_worker_of_ours_without_accelerators_uses_the_cpu(worker):
    assert told() == "true"
    worker.setenv("MASTER_ADDR", "where the user wants")
    assert told() == "true"


@pytest.mark.parametrize("value", ["false", "0", "true", ""])
def test_the_users_value_stays(worker, value):
    worker.setenv(USE_CPU, value)
    assert told() == value


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"])
def test_a_place_from_the_user_or_from_torchrun_is_left_alone(worker, name):
    worker.setenv(name, "7")
    assert told() is None


def test_a_process_of_no_launcher_and_a_job_of_one_rank_are_left_alone(worker):
    worker.setenv("WORLD_SIZE", "1")
    worker.setenv(torchrun_variables.MARK, "RANK=1 WORLD_SIZE=1")
    assert told() is None
    worker.delenv(torchrun_variables.MARK)
    assert told() is None


def test_a_machine_with_an_accelerator_is_left_alone(worker):
    worker.setattr(accelerate_on_cpu, "_may_have_accelerator", lambda: True)
    assert told() is None


def test_deepspeed_is_left_alone_whether_it_is_chosen_before_or_after_the_import(worker):
    worker.setenv(DEEPSPEED, "true")
    assert told() is None
    worker.delenv(DEEPSPEED)
    assert told() == "true"
    worker.setenv(DEEPSPEED, "true")
    assert told() is None
    worker.setenv(USE_CPU, "yes")
    assert told() == "yes"


def test_the_variable_is_there_before_accelerate_reads_it(package):
    accelerate_on_cpu.watch()
    accelerate_on_cpu.watch()
    assert sys.meta_path.count(accelerate_on_cpu._import_watch) == 1
    assert importlib.util.find_spec("accelerate") is not None  # libraries use find_spec to check if it is installed
    assert USE_CPU not in os.environ
    library = importlib.import_module("accelerate")
    assert library.found == "true"
    assert library.state.PartialState().num_processes == 4


def test_accelerate_may_be_there_before_the_watch(package):
    library = importlib.import_module("accelerate")
    assert USE_CPU not in os.environ
    accelerate_on_cpu.watch()
    assert library.state.AcceleratorState().state.num_processes == 4


def test_a_state_that_was_made_before_the_watch_is_told(package):
    importlib.import_module("accelerate.state").PartialState()
    with pytest.warns(HorovodWarning, match="Accelerate sees 1 process, but this job has 4 ranks"):
        accelerate_on_cpu.watch()


def test_the_plugin_of_deepspeed_takes_the_variable_back(package):
    accelerate_on_cpu.watch()
    library = importlib.import_module("accelerate")
    assert os.environ[USE_CPU] == "true"
    package.setenv(DEEPSPEED, "true")  # Accelerator(deepspeed_plugin=...) sets it
    package.setenv("WORLD_SIZE", "1")
    assert not library.state.AcceleratorState().state.cpu


def gpus(count):
    return SimpleNamespace(_device_count_nvml=lambda: count, _device_count_amdsmi=lambda: count)


@pytest.mark.parametrize("is_amd", [False, True])
@pytest.mark.parametrize(
    ("has_driver", "count", "expected"),
    [(True, 2, True), (True, 0, False), (True, -1, True), (False, -1, False)],
    ids=["GPUs", "all hidden", "uncounted", "no driver"],
)
def test_gpus_are_counted_without_their_driver(monkeypatch, is_amd, has_driver, count, expected):
    monkeypatch.setattr(accelerate_on_cpu, "_has_gpu_driver", lambda is_amd: has_driver)
    assert accelerate_on_cpu._may_have_gpu(gpus(count), is_amd) is expected


def test_packages_of_other_accelerators_count(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(__spec__=SimpleNamespace()))
    assert accelerate_on_cpu._may_have_accelerator()


@pytest.mark.parametrize("kind", ["none", "mps", "xpu"])
def test_accelerators_of_other_makers_count(monkeypatch, kind):
    torch = SimpleNamespace(
        backends=SimpleNamespace(
            mps=SimpleNamespace(is_available=lambda: kind == "mps"), cuda=SimpleNamespace(is_built=lambda: False)
        ),
        xpu=SimpleNamespace(_is_compiled=lambda: kind == "xpu"),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert accelerate_on_cpu._may_have_accelerator() is (kind != "none")
