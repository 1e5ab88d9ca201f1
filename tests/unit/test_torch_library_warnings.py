# SPDX-License-Identifier: Apache-2.0
"""The warning that Lightning or Ignite sees only one of several processes: in which processes, from which methods."""

import importlib
import inspect
import sys
import warnings
from types import SimpleNamespace

import pytest

from horovod import library_warnings
from horovod.common import torchrun_variables, user_warnings
from horovod.common.exceptions import HorovodWarning

# The relevant parts of the libraries: by module, the method that starts a training.
SOURCES = {
    "lightning.pytorch.trainer.trainer": """
class Trainer:
    def __init__(self, world_size): self.world_size = world_size
    def fit(self, model): "Train."; return model
""",
    "lightning.fabric.fabric": """
class Fabric:
    def __init__(self, world_size): self.world_size = world_size
    def setup(self, model): return model
""",
    "ignite.distributed.launcher": "class Parallel:\n    def run(self, training): return training",
    "ignite.engine.engine": "class Engine:\n    def run(self, data): return data",
}
ALONE = "sees 1 process, but this job has 4 ranks: it trains each rank alone."


@pytest.fixture
def libraries(monkeypatch, tmp_path):
    """Make fake modules of both libraries importable, in rank 1 of 4, without a process group or hvd.init()."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.delenv(torchrun_variables.MARK, raising=False)
    monkeypatch.setenv("HOROVOD_SIZE", "4")
    monkeypatch.setattr(user_warnings, "_said", set())
    monkeypatch.setattr(library_warnings, "_can_reduce", lambda: False)
    monkeypatch.setattr(library_warnings, "_import_watch", library_warnings._ImportWatch())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name, source in SOURCES.items():
        folder = tmp_path
        for package in name.split(".")[:-1]:
            folder /= package
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / name.split(".")[-1]).with_suffix(".py").write_text(source)
    before = {name: sys.modules.pop(name) for name in imported()}
    monkeypatch.syspath_prepend(str(tmp_path))
    yield monkeypatch
    for name in imported():
        del sys.modules[name]
    sys.modules.update(before)


def imported():
    return [name for name in sys.modules if name.partition(".")[0] in ("lightning", "ignite")]


def trained(world_size=1):
    """Start a training with each library; return the warnings of each."""
    trainer, fabric, launcher, engine = map(importlib.import_module, SOURCES)
    trainer, fabric = trainer.Trainer(world_size), fabric.Fabric(world_size)
    found = []
    for begin in (trainer.fit, fabric.setup, launcher.Parallel().run, engine.Engine().run):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert begin("model") == "model"
        assert all(it.category is HorovodWarning and it.filename == __file__ for it in caught)
        found.append([str(it.message) for it in caught])
    return found


@pytest.mark.parametrize("is_imported", [True, False])
def test_each_library_that_sees_one_process_warns_once(libraries, is_imported):
    if is_imported:
        list(map(importlib.import_module, SOURCES))
    library_warnings.watch()
    library_warnings.watch()
    assert sys.meta_path.count(library_warnings._import_watch) == 1
    lightning, fabric, ignite, again = trained()
    assert [len(it) for it in (lightning, fabric, ignite, again)] == [1, 1, 1, 0]
    assert lightning[0].startswith(f"Lightning {ALONE} Pass strategy='horovod' to Trainer() after")
    assert fabric[0].startswith(f"Lightning Fabric {ALONE} Pass strategy='ddp'")
    assert ignite[0].startswith(f"Ignite {ALONE} Pass a backend to idist.Parallel()")
    assert trained() == [[], [], [], []]


def test_methods_look_as_they_did(libraries):
    library_warnings.watch()
    fit = importlib.import_module("lightning.pytorch.trainer.trainer").Trainer.fit
    assert (fit.__name__, fit.__doc__, list(inspect.signature(fit).parameters)) == ("fit", "Train.", ["self", "model"])


def test_a_trainer_of_several_processes_is_left_alone(libraries):
    library_warnings.watch()
    lightning, fabric, *_ = trained(world_size=4)
    assert (lightning, fabric) == ([], [])


def test_a_script_that_may_reduce_by_itself_is_left_alone(libraries):
    library_warnings.watch()
    libraries.setattr(library_warnings, "_can_reduce", lambda: True)
    assert trained() == [[], [], [], []]


def test_a_module_that_is_being_imported_when_the_watch_begins(libraries, tmp_path):
    """Lightning's modules import torch, which installs the import hook while they are being imported."""
    module = tmp_path / "lightning" / "fabric" / "fabric.py"
    module.write_text("from horovod import library_warnings\nlibrary_warnings.watch()\n" + module.read_text())
    lightning, fabric, *_ = trained()
    assert (len(lightning), len(fabric)) == (1, 1)


@pytest.mark.parametrize("size", ["1", None])
def test_a_process_of_no_job_is_not_watched(libraries, size):
    libraries.delenv("HOROVOD_SIZE") if size is None else libraries.setenv("HOROVOD_SIZE", size)
    library_warnings.watch()
    assert library_warnings._import_watch not in sys.meta_path


def test_another_version_of_a_library_is_left_alone(libraries):
    libraries.setitem(sys.modules, "ignite.engine.engine", SimpleNamespace(__name__="ignite.engine.engine"))
    library_warnings.watch()


def test_what_lets_a_script_reduce(monkeypatch):
    torch_distributed = importlib.import_module("torch.distributed")
    context = SimpleNamespace(is_initialized=False)
    monkeypatch.setitem(sys.modules, "horovod.common.context", SimpleNamespace(default_context=context))
    assert not library_warnings._can_reduce()
    context.is_initialized = True
    assert library_warnings._can_reduce()
    context.is_initialized = False
    monkeypatch.setattr(torch_distributed, "is_initialized", lambda: True)
    assert library_warnings._can_reduce()
