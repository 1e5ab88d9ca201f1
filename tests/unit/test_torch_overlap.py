# SPDX-License-Identifier: Apache-2.0
"""When gradients are reduced during backward(): only where that does not take the processor away from it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from horovod.torch.gradients import overlap  # noqa: E402


@pytest.mark.parametrize(
    ("chosen", "bound_to", "of", "threads", "local_size", "size", "expected"),
    [
        (None, 2, 2, 1, 2, 2, False),  # two ranks share two processors, one thread each
        (None, 16, 16, 1, 2, 2, True),
        (None, 16, 16, 8, 2, 2, False),
        (None, 1, 16, 1, 2, 2, False),  # bound to one
        (None, 2, 16, 1, 2, 2, True),  # bound to two
        (None, 2, 2, 1, 2, 4, True),  # the network works beside the processor
        (True, 2, 2, 1, 2, 2, True),
        (False, 16, 16, 1, 2, 2, False),
    ],
)
def test_overlap_needs_a_spare_processor(
    monkeypatch: pytest.MonkeyPatch,
    chosen: bool | None,
    bound_to: int,
    of: int,
    threads: int,
    local_size: int,
    size: int,
    expected: bool,
) -> None:
    context = SimpleNamespace(
        settings={"HOROVOD_TORCH_OVERLAP": chosen}, topology=SimpleNamespace(local_size=local_size, size=size)
    )
    monkeypatch.setattr(overlap, "default_context", context)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(bound_to)))
    monkeypatch.setattr("os.cpu_count", lambda: of)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert overlap.overlaps() is expected
