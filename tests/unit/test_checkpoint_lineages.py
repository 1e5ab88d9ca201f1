# SPDX-License-Identifier: Apache-2.0
"""Checkpoint lineages: which training a checkpoint belongs to, what is deleted, resumed from and listed."""

import base64
import json
import logging
import shutil

import pytest
from harness.checkpoints import make_state, numbers
from typer.testing import CliRunner

from horovod.common import checkpoint as checkpoint_module
from horovod.common import checkpoint_file, elastic
from horovod.common.checkpoint import checkpoint
from horovod.common.checkpoint_folder import lineage_of, list_files, look_at, number_of, path_of
from horovod.common.elastic import run_fn
from horovod.common.exceptions import HorovodCheckpointError
from horovod.common.lineage import FIRST_FORMAT, CommitId, SeenFile
from horovod.tools.cli import app

# A checkpoint in format 1, which does not record a lineage: weights = [5, 5, 5, 5], step = 5.
FORMAT_1 = base64.b64decode(
    "SFZEU1RBVEUBAAAAAAAAACkAAAAAAAAAQAAAAAAAAACBpnZhbHVlc4Knd2VpZ2h0c8cPAZWlbnVtcHmjPGY4kQQAIKRzdGVwBQAAAAAAABRAAAAAAAAA"
    "FEAAAAAAAAAUQAAAAAAAABRAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAWTPQUrI4GJf7Q/3yl8UtVA5WigxxRCAtSFpmzoyC16w=="
)


@pytest.fixture(autouse=True)
def context(monkeypatch):
    """Replace the context, which a checkpoint asks for its rank and generation. No collective runs."""

    class Context:
        is_initialized = True
        rank = 0
        generation = 0
        has_state = False

        def __init__(self):
            self.seen_files = {}

        @property
        def topology(self):
            return self

        def show(self, *_):
            pass

    found = Context()
    found.elastic = found
    monkeypatch.setattr(checkpoint_module, "default_context", found)
    monkeypatch.setattr(elastic, "default_context", found)
    monkeypatch.setattr(elastic, "allgather_object", lambda value, name: [value])
    return found


@pytest.fixture
def said(caplog, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "logger", logging.getLogger("test_lineages"))
    caplog.set_level(logging.INFO, "test_lineages")
    return caplog


def train(state, steps):
    """Train with a decorated function that commits after each step."""

    def loop(state):
        for _ in range(steps):
            state.weights = state.weights + 1
            state.step += 1
            state.commit()
            state._checkpoint.wait()

    run_fn(loop, lambda: None)(state)
    return state


def trained(folder, steps, **options):
    state = make_state()
    checkpoint(state, folder, **options)
    return train(state, steps)


def committed(state, steps):
    """Train without hvd.elastic.run: commit after each step."""
    for _ in range(steps):
        state.step += 1
        state.commit()
        state._checkpoint.wait()


def test_a_training_keeps_its_lineage_and_counts_its_commits_from_job_to_job(tmp_path):
    first = trained(tmp_path, 3)._commit_id
    second = trained(tmp_path, 4, every=2)._commit_id
    assert (second.lineage, first.commits, second.commits) == (first.lineage, 3, 7)
    files = list_files(tmp_path)
    assert {lineage_of(path) for path in files} == {first.lineage}
    assert [checkpoint_file.describe(path).commit.commits for path in files] == [7, 5, 3]
    assert trained(tmp_path / "other", 1)._commit_id.lineage != first.lineage


def test_files_in_format_1_stay_readable_and_are_one_lineage(tmp_path):
    for number in (3, 4, 5):
        (tmp_path / f"checkpoint-{number:08d}.hvd").write_bytes(FORMAT_1)
    state = make_state()
    assert checkpoint(state, tmp_path).resumed_from.name == "checkpoint-00000005.hvd"
    assert (state.step, state.weights.tolist()) == (5, [5.0] * 4)
    train(state, 2)
    assert state._commit_id == CommitId(FIRST_FORMAT, 7)
    assert [path.name for path in list_files(tmp_path)] == [  # the files in format 1 belong to the same training
        f"checkpoint-00000007-{FIRST_FORMAT}.hvd",
        f"checkpoint-00000006-{FIRST_FORMAT}.hvd",
        "checkpoint-00000005.hvd",
    ]
    assert trained(tmp_path, 1).step == 8


def test_damage_in_format_1_is_found(tmp_path):
    for at in range(len(FORMAT_1)):
        (tmp_path / "x").write_bytes(FORMAT_1[:at] + bytes([FORMAT_1[at] ^ 1]) + FORMAT_1[at + 1 :])
        for read in (checkpoint_file.read, checkpoint_file.check):
            with pytest.raises(checkpoint_file.BadCheckpointError):
                read(tmp_path / "x")


def test_only_files_of_the_own_lineage_are_deleted(tmp_path, said):
    before = trained(tmp_path, 3)._commit_id.lineage
    after = trained(tmp_path, 5, keep=2, overwrite=True)
    assert after.step == 5
    assert "the 3 checkpoints in" in said.text
    assert [(number_of(path), lineage_of(path)) for path in list_files(tmp_path)] == [
        *((number, after._commit_id.lineage) for number in (8, 7)),
        *((number, before) for number in (3, 2, 1)),
    ]
    assert trained(tmp_path, 1).step == 6  # resumed from the newest training


def test_a_damaged_file_is_not_replaced_by_one_of_another_training(tmp_path):
    trained(tmp_path, 2)
    trained(tmp_path, 2, overwrite=True)
    for path in list_files(tmp_path)[:2]:
        path.write_bytes(b"")
    state = make_state()
    checkpoint(state, tmp_path)
    with pytest.raises(HorovodCheckpointError, match=r"None of the 2 checkpoints in .*: it is empty.*overwrite=True"):
        train(state, 1)
    assert state.step == 0
    assert numbers(tmp_path) == [4, 3, 2, 1]
    assert trained(tmp_path, 1, overwrite=True).step == 1


def test_two_trainings_at_the_same_time_lose_nothing_and_no_job_goes_on_from_both(tmp_path, said):
    one, other = make_state(), make_state()
    for state in (one, other):
        checkpoint(state, tmp_path, keep=2)
    committed(one, 2)
    committed(other, 3)
    committed(one, 3)
    kept = [(number_of(path), lineage_of(path)) for path in list_files(tmp_path)]
    first, second = one._commit_id.lineage, other._commit_id.lineage
    assert kept == [(8, first), (7, first), (5, second), (4, second)]
    assert said.text.count("Another training also writes checkpoints to") == 2  # each training logs it once
    committed(other, 1)
    state = make_state()
    checkpoint(state, tmp_path)
    with pytest.raises(HorovodCheckpointError, match=r"2 trainings .* at the same time.*`hvd checkpoints"):
        train(state, 1)
    assert len(list_files(tmp_path)) == 4


def test_two_states_in_one_program_have_lineages_of_their_own(tmp_path, context):
    for one in ("a", "b"):
        trained(tmp_path / one, 2)
    first, second = make_state(), make_state()
    checkpoint(first, tmp_path / "a")
    checkpoint(second, tmp_path / "b")
    train(first, 1)
    assert context.has_state
    assert second._commit_id is None  # the second state has not been synchronised yet
    context.generation, context.rank = 1, 1  # another worker becomes rank 0; afterwards this worker is rank 0 again
    second.step = 99
    context.generation, context.rank = 2, 0
    train(second, 1)
    assert (first.step, second.step) == (3, 3)
    assert first._commit_id.lineage != second._commit_id.lineage


def test_a_worker_that_becomes_rank_0_loads_the_checkpoint_in_run(tmp_path, context):
    trained(tmp_path, 3)
    context.rank = 1
    state = make_state()
    assert checkpoint(state, tmp_path).resumed_from is None
    assert context.seen_files[state._checkpoint.call].number == 3
    context.rank = 0
    assert train(state, 1).step == 4


def test_files_that_come_before_the_first_sync_are_not_written_over(tmp_path):
    late = make_state()
    checkpoint(late, tmp_path)
    trained(tmp_path, 2)
    with pytest.raises(HorovodCheckpointError, match="has seen the checkpoint"):
        train(late, 1)
    assert numbers(tmp_path) == [2, 1]


def test_a_worker_without_the_folder_does_not_start_from_nothing(tmp_path, context):
    trained(tmp_path / "a", 3)
    state = make_state()
    result = checkpoint(state, tmp_path / "b")
    # The elastic driver has reported a checkpoint in the folder "a".
    context.seen_files = {result.call: SeenFile(result.call, 3, "00" * 8, 3, str(tmp_path / "a/3"))}
    with pytest.raises(HorovodCheckpointError, match=rf"{tmp_path}/a/3.* rank 0 finds none in {tmp_path}/b"):
        train(state, 1)
    assert list_files(tmp_path / "b") == []


def test_a_folder_that_is_a_file_or_cannot_be_used_ends_training(tmp_path):
    (tmp_path / "file").write_text("text")
    for folder, text in ((tmp_path / "file", "is a file, not a directory"), (tmp_path / "file" / "in", "is a file")):
        state = make_state()
        checkpoint(state, folder)
        with pytest.raises(HorovodCheckpointError, match=f"rank 0 cannot load a checkpoint: {tmp_path}/file.* {text}"):
            train(state, 1)
    assert (tmp_path / "file").read_text() == "text"


def test_a_state_that_is_not_given_to_run_is_not_written_over_files_that_were_never_loaded(tmp_path, context):
    trained(tmp_path, 2)
    context.rank = 1
    state = make_state()
    checkpoint(state, tmp_path)
    context.rank = 0
    with pytest.raises(HorovodCheckpointError, match=f"rank 0 has not loaded the checkpoints in {tmp_path}"):
        state.commit()
    damaged = make_state()
    list_files(tmp_path)[0].write_bytes(b"")
    list_files(tmp_path)[1].write_bytes(b"")
    checkpoint(damaged, tmp_path)
    with pytest.raises(HorovodCheckpointError, match="None of the 2 checkpoints"):
        damaged.commit()
    assert numbers(tmp_path) == [2, 1]


def test_what_a_worker_sees(tmp_path):
    assert look_at(tmp_path / "none", 0) == (None, frozenset())
    (tmp_path / "file").write_text("")
    assert look_at(tmp_path / "file", 0) == (None, frozenset())
    lineage = trained(tmp_path / "a", 2)._commit_id.lineage
    newest = list_files(tmp_path / "a")[0]
    assert look_at(tmp_path / "a", 5) == (SeenFile(5, 2, lineage, 2, str(newest)), {lineage})
    newest.write_bytes(b"")
    assert look_at(tmp_path / "a", 5) == (SeenFile(5, 2, lineage, 0, str(newest)), {lineage})


def listed(*words):
    result = CliRunner().invoke(app, ["checkpoints", *map(str, words)])
    return result.exit_code, result.output


def test_the_command_lists_a_folder(tmp_path):
    lineage = trained(tmp_path, 3)._commit_id.lineage
    code, page = listed(tmp_path)
    assert code == 0, page
    assert page.count("intact") == 3
    newest, second, third = (path.name for path in list_files(tmp_path))
    assert f"A job goes on from {newest}" in page
    assert f"{lineage} (3)" in page
    data = bytearray((tmp_path / newest).read_bytes())
    data[-40] ^= 1
    (tmp_path / newest).write_bytes(data)
    (tmp_path / "checkpoint-00000001.hvd").write_bytes(FORMAT_1)
    (tmp_path / third).unlink()
    code, text = listed(tmp_path, "--json")
    assert code == 1
    found = json.loads(text)
    assert found["next_start"] == second
    assert [(one["file"], one["lineage"], one["commits"], one["intact"]) for one in found["checkpoints"]] == [
        (newest, lineage, None, False),
        (second, lineage, 2, True),
        ("checkpoint-00000001.hvd", FIRST_FORMAT, 1, True),
    ]
    assert found["checkpoints"][0]["problem"] == "its checksum is wrong: its contents were changed"
    assert found["checkpoints"][1]["time"].startswith("20")


def test_the_command_says_why_no_job_can_start(tmp_path):
    code, text = listed(tmp_path)
    assert (code, "holds no checkpoints: training starts from nothing" in " ".join(text.split())) == (0, True)
    code, text = listed(tmp_path / "none")
    assert (code, "No such file or directory" in text) == (1, True)
    trained(tmp_path, 1)
    source = list_files(tmp_path)[0]
    shutil.copy(source, path_of(tmp_path, 1, "ab" * 8))
    code, text = listed(tmp_path)
    assert code == 1
    assert "2 trainings that were written at the same time" in " ".join(text.split())
    source.write_bytes(b"")
    path_of(tmp_path, 1, "ab" * 8).unlink()
    code, text = listed(tmp_path)
    assert (code, "none of the 1 checkpoints of the newest training is intact" in " ".join(text.split())) == (1, True)
