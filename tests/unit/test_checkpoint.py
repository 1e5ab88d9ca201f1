# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: complete or absent, verified before use, the newest valid one wins, errors name the file."""

import errno
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from harness.checkpoints import make_state, numbers

from horovod.common import checkpoint as checkpoint_module
from horovod.common import checkpoint_file
from horovod.common.checkpoint import Checkpoint, checkpoint, list_files
from horovod.common.checkpoint_file import BadCheckpointError
from horovod.common.checkpoint_folder import number_of
from horovod.common.lineage import CommitId


@pytest.fixture(autouse=True)
def rank_0(monkeypatch):
    """Replace the context, which a checkpoint asks for its rank, by a stand-in for rank 0."""

    class Context:
        is_initialized = True
        rank = 0
        generation = 0

        def __init__(self):
            self.seen_files = {}

        @property
        def topology(self):
            return self

    context = Context()
    context.elastic = context
    monkeypatch.setattr(checkpoint_module, "default_context", context)
    return context


@pytest.fixture
def said(caplog, monkeypatch):
    """Return the captured log of the checkpoint module."""
    monkeypatch.setattr(checkpoint_module, "logger", logging.getLogger("test_checkpoint"))
    caplog.set_level(logging.INFO, "test_checkpoint")
    return caplog


FIRST = CommitId("0123456789abcdef", 1)


def trained(state, steps):
    for _ in range(steps):
        state.weights = state.weights + 1
        state.step += 1
        state.commit()
        state._checkpoint.wait()
    return state


def error_of(state, folder, **options):
    """Return the error that prevents resuming from a folder, or None. It is raised only when all ranks synchronise."""
    return checkpoint(state, folder, **options).load().error


CONTENTS = [
    None,
    [1, -1, 2**63, 2**64 - 1, -(2**63), 2**100, 1.5, float("inf"), "text", b"bytes", True, False],
    {"a": (1, (2, [3])), 1: {"nested": None}, (1, "x"): 2},
    {"complex": 1 + 2j, "set": {1, 2}},
    [np.arange(6).reshape(2, 3), np.zeros(0), np.array(3.5), np.array([1 + 2j]), np.array(["ab", "c"])],
    [np.arange(6).reshape(2, 3).T, np.float32(2.5), np.int64(3), np.array([None, 1], object)],
    [np.array([True, False]), np.arange(3, dtype=">i4"), np.array(["2026-01-01"], "datetime64[D]")],
]


def same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, (np.ndarray, np.generic)):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            same(found[key], wanted[key])
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    else:
        assert found == wanted


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
def test_what_is_written_is_read(tmp_path, content):
    checkpoint_file.write(tmp_path / "x", content, FIRST)
    same(checkpoint_file.read(tmp_path / "x"), content)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_tensors_of_pytorch(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "empty": torch.zeros(0, 3)}
    checkpoint_file.write(tmp_path / "x", content, FIRST)
    found = checkpoint_file.read(tmp_path / "x")
    assert type(found["model"]) is OrderedDict
    assert found["model"]._metadata == content["model"]._metadata
    torch.testing.assert_close(found, content, rtol=0, atol=0)
    assert b"cloudpickle" not in (tmp_path / "x").read_bytes()  # nothing in these contents needs cloudpickle
    assert b"torch._utils" not in (tmp_path / "x").read_bytes()


def test_every_damage_is_found(tmp_path):
    path = tmp_path / "x"
    checkpoint_file.write(path, {"weights": np.arange(10.0), "step": 3}, FIRST)
    good = path.read_bytes()
    for end in (0, 4, 20, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:end])
        with pytest.raises(BadCheckpointError, match="cut off|empty|not a checkpoint"):
            checkpoint_file.read(path)
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(BadCheckpointError):
            checkpoint_file.read(path)
    path.write_bytes(good + b"x")
    with pytest.raises(BadCheckpointError):
        checkpoint_file.read(path)
    path.write_bytes(good[:8] + struct.pack("<I", 3) + good[12:])
    with pytest.raises(BadCheckpointError, match="it has format 3, and this version of Horovod reads formats 1 to 2"):
        checkpoint_file.read(path)


def test_a_new_job_goes_on_from_the_newest_and_only_some_are_kept(tmp_path, said):
    state = make_state()
    assert checkpoint(state, tmp_path / "new" / "folder", keep=2).resumed_from is None
    trained(state, 5)
    assert numbers(tmp_path / "new" / "folder") == [5, 4]
    later = make_state()
    resumed = checkpoint(later, tmp_path / "new" / "folder")
    assert later.step == 5
    assert (later.weights == 5).all()
    assert number_of(resumed.resumed_from) == 5
    assert "continues from the checkpoint" in said.text
    trained(later, 1)
    assert numbers(tmp_path / "new" / "folder") == [6, 5, 4]
    later.step = 77
    later.restore()
    assert later.step == 6


def test_fault_31_what_is_damaged_is_passed_over_by_name(tmp_path, said):
    state = make_state()
    checkpoint(state, tmp_path)
    trained(state, 3)
    newest, middle, _ = list_files(tmp_path)
    newest.write_bytes(newest.read_bytes()[:-5])
    data = bytearray(middle.read_bytes())
    data[60] ^= 0x40
    middle.write_bytes(data)
    later = make_state()
    assert number_of(checkpoint(later, tmp_path).resumed_from) == 1
    assert later.step == 1
    assert f"The checkpoint {newest} is not used: it has" in said.text
    assert f"The checkpoint {middle} is not used: its checksum is wrong" in said.text
    files = list_files(tmp_path)
    for path in files:
        path.write_bytes(b"")
    error = error_of(make_state(), tmp_path)
    assert f"None of the 3 checkpoints in {tmp_path} is usable" in error
    assert all(f"{path.name}: it is empty" in error for path in files)
    assert "pass overwrite=True" in error
    assert list_files(tmp_path) == files


def test_another_state_is_refused(tmp_path):
    state = make_state()
    checkpoint(state, tmp_path)
    trained(state, 1)
    error = error_of(make_state(epoch=1), tmp_path)
    assert error.startswith(f"{list_files(tmp_path)[0]}: ")
    assert "it has the values ['step', 'weights'], and the state ['epoch', 'step', 'weights']" in error


def test_every_second_commit_and_the_last(tmp_path):
    state = make_state()
    writer = checkpoint(state, tmp_path, every=2, keep=10)
    trained(state, 5)
    assert len(list_files(tmp_path)) == 2
    writer.finish()
    assert len(list_files(tmp_path)) == 3
    writer.finish()
    assert len(list_files(tmp_path)) == 3
    later = make_state()
    checkpoint(later, tmp_path)
    assert later.step == 5


def test_only_rank_0_reads_and_writes(tmp_path, rank_0):
    rank_0.rank = 1
    state = make_state()
    writer = checkpoint(state, tmp_path / "none")
    trained(state, 2)
    writer.finish()
    assert not (tmp_path / "none").exists()
    rank_0.rank = 0  # the worker that was rank 0 was lost, and this one takes its place
    trained(state, 1)
    assert len(list_files(tmp_path / "none")) == 1


def test_a_commit_that_comes_too_early_is_left_out_and_does_not_wait(tmp_path, monkeypatch):
    go_on, real = threading.Event(), checkpoint_file.write
    monkeypatch.setattr(checkpoint_file, "write", lambda *words: (go_on.wait(30), real(*words)))
    state = make_state()
    writer = checkpoint(state, tmp_path)
    for step in range(1, 6):  # the first commit is still being written
        state.step, state.weights = step, np.full(4, float(step))
        state.commit()
    go_on.set()
    writer.finish()
    files = list_files(tmp_path)
    assert [checkpoint_file.read(path)["values"]["step"] for path in files] == [5, 1]
    # The file has the values at the time of the commit, not later ones.
    assert (checkpoint_file.read(files[1])["values"]["weights"] == 1).all()


def test_fault_22_a_full_disk_is_one_warning(tmp_path, said, monkeypatch):
    state = make_state()
    checkpoint(state, tmp_path)
    trained(state, 1)
    real = os.write

    def full(descriptor, data):
        if os.fstat(descriptor).st_size:  # the disk had room for the header
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    monkeypatch.setattr(checkpoint_file.os, "write", full)
    trained(state, 3)
    assert said.text.count("No space left on device") == 1
    assert [number_of(path) for path in tmp_path.iterdir()] == [1]  # the last good file; no half-written one is left
    monkeypatch.setattr(checkpoint_file.os, "write", real)
    trained(state, 1)
    assert said.text.count("are written to") == 1
    newest = list_files(tmp_path)[0]
    assert checkpoint_file.read(newest)["values"]["step"] == checkpoint_file.describe(newest).commit.commits == 5


def test_what_cannot_be_written_is_a_warning_too(tmp_path, said):
    state = make_state()
    checkpoint(state, tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").write_text("a file in its place")
    trained(state, 2)
    assert said.text.count("No checkpoint could be written to") == 1


SAVER = """
import sys
from pathlib import Path
import numpy as np
from horovod.common import checkpoint_file
from horovod.common.lineage import CommitId
path, real = Path(sys.argv[1]), checkpoint_file._write_all
def slowly(descriptor, piece):
    real(descriptor, piece[: max(1, len(piece) // 2)])
    print("writing", flush=True)
    sys.stdin.read()
checkpoint_file._write_all = slowly
checkpoint_file.write(path, {"values": {"weights": np.ones(1000), "step": 99}}, CommitId("01" * 8, 2))
"""


def test_a_kill_in_the_middle_of_a_save_leaves_the_one_before(tmp_path):
    state = make_state()
    checkpoint(state, tmp_path)
    trained(state, 1)
    command = [sys.executable, "-c", SAVER, str(tmp_path / "checkpoint-00000002.hvd")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as saver:
        assert saver.stdout.readline() == b"writing\n"
        saver.send_signal(signal.SIGKILL)
        saver.wait(30)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 2  # the interrupted save left a file under a temporary name
    later = make_state()
    assert number_of(checkpoint(later, tmp_path).resumed_from) == 1
    assert later.step == 1
    assert [number_of(path) for path in tmp_path.iterdir()] == [1]


def test_arguments(tmp_path, rank_0):
    with pytest.raises(ValueError, match="at least 1"):
        Checkpoint(make_state(), Path(tmp_path), 0, 3)
    rank_0.is_initialized = False
    with pytest.raises(ValueError, match=r"was called before hvd.init\(\)"):
        checkpoint(make_state(), tmp_path)
