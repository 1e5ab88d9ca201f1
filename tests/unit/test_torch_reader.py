# SPDX-License-Identifier: Apache-2.0
"""Tensors as native calls read them: through DLPack's function table, or by attributes if torch has no such table."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from horovod._engine import Arrivals, GradientTable, TensorReader  # noqa: E402
from horovod.torch.adapter import ID_BY_DTYPE, TorchAdapter, tensor_reader  # noqa: E402
from horovod.torch.cuda_direct import follow_streams  # noqa: E402

READERS = {
    "as torch offers": tensor_reader(),
    "attributes": TensorReader(torch.Tensor, ID_BY_DTYPE, torch.strided, None),
}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> TensorReader:
    return READERS[request.param]


@pytest.mark.parametrize("dtype", ID_BY_DTYPE, ids=str)
def test_every_dtype_is_read_as_the_adapter_reads_it(reader: TensorReader, dtype: torch.dtype) -> None:
    for shape in ((), (3,), (2, 1, 3), (0, 2)):
        tensor = torch.empty(shape, dtype=dtype)  # torch 2.1 has float8, but cannot fill it
        assert reader.read(tensor) == TorchAdapter.source(tensor)


def test_views_of_memory_are_read_where_they_begin(reader: TensorReader) -> None:
    memory = torch.zeros(4, 6)
    assert reader.read(memory[2]) == (memory.data_ptr() + 48, (6,), ID_BY_DTYPE[torch.float32])
    # The stride of a dimension of size 1 does not matter.
    assert reader.read(memory[1:2].as_strided((1, 6), (99, 1))) is not None


def test_others_are_left_to_the_caller(reader: TensorReader) -> None:
    for other in (
        torch.zeros(2, 3).t(),
        torch.zeros(6)[::2],
        torch.zeros(1, dtype=torch.complex64),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, device="meta"),
        torch.nn.Parameter(torch.zeros(2)),
        torch._neg_view(torch.zeros(2)),
        torch.tensor([1j]).conj().imag,
        None,
        [1.0],
    ):
        assert reader.read(other) is None


def test_a_table_does_not_keep_parameters_that_hold_on_to_it() -> None:
    table = GradientTable(tensor_reader(), [], 0, 1.0, 1.0, 0)
    parameter = torch.nn.Parameter(torch.zeros(1))
    table.add("allreduce.weight", parameter, False)
    parameter.table = table
    gone = weakref.ref(parameter)
    del parameter, table
    gc.collect()
    assert gone() is None


def test_hooks_tell_of_arrivals_in_order_and_raise_what_the_first_raises() -> None:
    told: list[int] = []
    arrivals = Arrivals(100, lambda: told.append(1))
    first, large = arrivals.hook(7, 4, None), arrivals.hook(3, 100, None)
    for hook in (first, first, large):
        assert hook(None) is None
    assert told == [1, 1]  # the first arrival, and the one that reached the limit
    assert arrivals.take() == [7, 7, 3]

    def refuse() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Arrivals(100, refuse).hook(0, 4, None)(None)


def test_hooks_tell_on_which_streams_something_came() -> None:
    current = {0: 11, 1: 21}
    arrivals = Arrivals(100, lambda: None)
    hooks = [arrivals.hook(number, 4, None, current.__getitem__, number % 2) for number in range(4)]
    for hook in (*hooks, arrivals.hook(9, 4, None)):
        hook(None)
    current[0] = 12
    hooks[2](None)
    assert arrivals.take() == [0, 1, 2, 3, 9, 2]
    assert arrivals.take_streams() == [(0, 11), (1, 21), (0, 12)]
    assert arrivals.take_streams() == []
    with pytest.raises(KeyError):
        arrivals.hook(0, 4, None, current.__getitem__, 5)(None)
    assert not arrivals


def test_what_came_on_other_streams_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[int, object]] = []

    class OwnStream:
        def __init__(self, device: int) -> None:
            self.device, self.cuda_stream = device, 10 * device

        def wait_stream(self, other: object) -> None:
            waits.append((self.device, other))

    monkeypatch.setattr(torch.cuda, "current_stream", OwnStream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"default of {device}")
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda stream, device: f"{stream} of {device}")
    follow_streams([(0, 0), (0, 7), (1, 10), (1, 0)])
    assert waits == [(0, "7 of 0"), (1, "default of 1")]
