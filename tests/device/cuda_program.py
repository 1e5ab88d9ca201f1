# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_torch_cuda.py. All ranks use the one GPU; every check raises when it fails."""

import sys
import time

import pytest
import torch

import horovod.torch as hvd

hvd.init()
DEVICE = torch.device("cuda", 0)
SIZE, RANK = hvd.size(), hvd.rank()
TOTAL = float(sum(range(1, SIZE + 1)))


def mine(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, RANK + 1, device=DEVICE).to(dtype)


def same(result: torch.Tensor, expected: object) -> None:
    assert result.device == DEVICE, result.device
    wanted = torch.as_tensor(expected, device=DEVICE).to(result.dtype)
    torch.testing.assert_close(result, wanted.expand_as(result), rtol=0, atol=0)


def raises(kind: type[BaseException], text: str, call: object) -> None:
    with pytest.raises(kind, match=text):
        call()  # type: ignore[operator]


def check_every_operation() -> None:
    same(hvd.allreduce(mine(5), op=hvd.Sum), TOTAL)
    for operation in (hvd.allreduce_, lambda it, op: hvd.synchronize(hvd.allreduce_async_(it, op=op))):
        tensor = mine(3, 2)
        assert operation(tensor, op=hvd.Sum) is tensor
        same(tensor, TOTAL)
    for results in (
        hvd.grouped_allreduce([mine(2), mine(0), mine(4, 4)], op=hvd.Sum),
        hvd.grouped_allreduce_([mine(2), mine(4, 4)], op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async_([mine(7)], op=hvd.Sum)),
    ):
        for result in results:
            same(result, TOTAL)
    same(hvd.broadcast(mine(3), SIZE - 1), SIZE)
    same(hvd.broadcast_(mine(3), SIZE - 1), SIZE)
    rows = torch.cat([torch.full((rank, 2), rank + 1.0) for rank in range(SIZE)])
    same(hvd.allgather(mine(RANK, 2)), rows)
    same(hvd.grouped_allgather([mine(RANK, 2), mine(1)])[0], rows)
    same(hvd.alltoall(mine(SIZE)), torch.arange(1.0, SIZE + 1))
    splits = torch.full((SIZE,), 2, dtype=torch.int32, device=DEVICE)
    output, received = hvd.alltoall(mine(2 * SIZE + 1), splits=splits)
    same(output, torch.arange(1.0, SIZE + 1).repeat_interleave(2))
    same(received, splits)
    same(hvd.reducescatter(mine(SIZE, 3), op=hvd.Sum), torch.full((1, 3), TOTAL))
    same(hvd.grouped_reducescatter([mine(SIZE)], op=hvd.Sum)[0], torch.full((1,), TOTAL))
    if SIZE > 1:
        handle = hvd.send_async(mine(9), (RANK + 1) % SIZE)
        same(hvd.recv(torch.empty(9, device=DEVICE), (RANK - 1) % SIZE), float((RANK - 1) % SIZE + 1))
        hvd.synchronize(handle)
    embedding = torch.nn.Embedding(4, 2, sparse=True).to(DEVICE)
    embedding(torch.tensor([1], device=DEVICE)).sum().backward()
    sparse = hvd.sparse_allreduce_async(embedding.weight.grad, "embedding", hvd.Sum)()
    same(sparse.to_dense()[1], float(SIZE))


def check_dtypes() -> None:
    for name in ("uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn"):
        tensor = mine(6, dtype=getattr(torch, name))
        same(hvd.allreduce(tensor, op=hvd.Sum).to(torch.float32), TOTAL)
        same(hvd.broadcast(tensor, 0).to(torch.float32), 1.0)


def full_range(dtype: torch.dtype, rank: int, *shape: int) -> torch.Tensor:
    limits, dice = torch.iinfo(dtype), torch.Generator().manual_seed(rank)
    return torch.randint(limits.min, limits.max + 1, shape, generator=dice, dtype=torch.int64).to(dtype)


def check_integer_averages() -> None:
    """Check that averages are the exact quotient, truncated toward zero, although most sums overflow."""
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        for rows in (1, 999, 300_001):
            inputs = [full_range(dtype, rank, rows, 5) for rank in range(SIZE)]
            total = torch.stack([it.to(torch.int64) for it in inputs]).sum(dim=0)
            exact = torch.div(total, SIZE, rounding_mode="trunc").to(dtype)
            own = inputs[RANK].to(DEVICE)
            same(hvd.allreduce(own), exact)
            for result in hvd.grouped_allreduce([own, own[:1].clone()]):
                same(result, exact[: len(result)])
            same(hvd.reducescatter(own), torch.tensor_split(exact, SIZE)[RANK])
            same(own, inputs[RANK])  # the input is unchanged
            assert hvd.allreduce_(own) is own
            same(own, exact)


def negated(*shape: int) -> torch.Tensor:
    """Return a tensor with the values of mine() whose memory holds the negated values."""
    tensor = torch._neg_view(-mine(*shape))
    assert tensor.is_neg()
    return tensor


def check_negative_bits() -> None:
    same(hvd.allreduce(negated(5), op=hvd.Sum), TOTAL)
    same(hvd.broadcast(negated(3), SIZE - 1), SIZE)
    same(hvd.allgather(negated(1)), torch.arange(1.0, SIZE + 1))
    tensor = negated(3, 2)
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    same(tensor, TOTAL)
    same(hvd.broadcast_(negated(3), SIZE - 1), SIZE)
    weight = torch.nn.Parameter(torch.zeros(50_000, device=DEVICE))
    if RANK == 0:  # the other ranks' gradients do not have the negative bit
        weight.register_hook(lambda grad: torch._neg_view(grad.neg()))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    (weight * (RANK + 1.0)).sum().backward()
    optimizer.step()
    same(weight.detach(), -TOTAL / SIZE)


def check_streams() -> None:
    """Check that an operation waits for the current stream, and that the current stream waits for the result."""
    side = torch.cuda.Stream()
    for turn in range(20):
        with torch.cuda.stream(side):
            tensor = torch.zeros(1 << 20, device=DEVICE)
            torch.cuda._sleep(2_000_000)  # long enough that the fill below is not done when the operation is called
            tensor.fill_(float(RANK + 1 + turn))
            handle = hvd.allreduce_async_(tensor, op=hvd.Sum)
            result = hvd.synchronize(handle)
            doubled = result * 2
            other = hvd.allreduce(tensor.clone(), op=hvd.Max)
        side.synchronize()
        same(doubled, 2 * (TOTAL + SIZE * turn))
        same(other, TOTAL + SIZE * turn)
    # Memory that torch frees while it is being copied must not be reused before the copy is done.
    handles = [
        hvd.allreduce_async(torch.full((1 << 18,), float(index), device=DEVICE), op=hvd.Max) for index in range(30)
    ]
    noise = [torch.full((1 << 18,), -1.0, device=DEVICE) for _ in range(30)]
    for index, handle in enumerate(handles):
        same(hvd.synchronize(handle), float(index))
    assert len(noise) == 30


def check_asynchrony() -> None:
    """Check that the caller gets its handle while the device is still busy with work that precedes the input."""
    tensor = mine(1 << 20)
    hvd.allreduce(tensor, name="warm")
    torch.cuda.synchronize()
    hvd.barrier()
    torch.cuda._sleep(int(1e9))  # about half a second
    began = time.perf_counter()
    handle = hvd.allreduce_async(tensor, op=hvd.Sum, name="late")
    took = time.perf_counter() - began
    assert took < 0.1, f"{took} s"
    same(hvd.allgather(torch.tensor([RANK]), name="on the host").to(DEVICE), torch.arange(SIZE))
    same(hvd.synchronize(handle), TOTAL)
    handle = hvd.allreduce_async(tensor, op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    hvd.synchronize(handle)


def check_autograd() -> None:
    tensor = mine(4).requires_grad_()
    (hvd.allreduce(tensor, op=hvd.Sum) * (RANK + 1)).sum().backward()
    same(tensor.grad, TOTAL)
    tensor = mine(RANK + 1).requires_grad_()
    (hvd.allgather(tensor) * 2).sum().backward()
    same(tensor.grad, 2.0)
    tensor = mine(SIZE).requires_grad_()
    hvd.alltoall(tensor).sum().backward()
    same(tensor.grad, 1.0)
    tensor = mine(SIZE).requires_grad_()
    hvd.reducescatter(tensor, op=hvd.Sum).sum().backward()
    same(tensor.grad, float(SIZE))
    tensor = mine(SIZE).requires_grad_()
    hvd.broadcast(tensor, 0).sum().backward()
    same(tensor.grad, float(RANK == 0))


def check_errors() -> None:
    raises(
        RuntimeError,
        "on one device, but these are on cpu, cuda:0",
        lambda: hvd.grouped_allreduce([torch.ones(2), mine(2)]),
    )
    raises(ValueError, "not contiguous", lambda: hvd.allreduce(mine(4, 4)[:, 1]))
    if SIZE > 1:
        shape = 3 if RANK else 4
        handle = hvd.allreduce_async(mine(shape), name="shapes")
        raises(hvd.HorovodInternalError, "Mismatched ALLREDUCE tensor shapes", lambda: hvd.synchronize(handle))
        handle = hvd.allreduce_async(mine(3) if RANK else mine(3).cpu(), op=hvd.Sum, name="both")
        raises(hvd.HorovodInternalError, "CPU/GPU device selection", lambda: hvd.synchronize(handle))


def check_compiled() -> None:
    if hasattr(torch.library, "register_autograd"):
        function = torch.compile(lambda it: hvd.allreduce(it * 2, op=hvd.Sum) + 1, fullgraph=True, backend="aot_eager")
        tensor = mine(4).requires_grad_()
        result = function(tensor)
        same(result, 2 * TOTAL + 1)
        result.sum().backward()
        same(tensor.grad, 2.0 * SIZE)


def check_ranges() -> None:
    """Check that profilers see a range for each operation, from the call until the launch."""
    begun: list[str] = []
    open_ranges: set[int] = set()

    def begin(name: str) -> int:
        begun.append(name)
        open_ranges.add(len(begun))
        return len(begun)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.nvtx, "range_start", begin)
        patch.setattr(torch.cuda.nvtx, "range_end", open_ranges.remove)
        hvd.allreduce(mine(3), op=hvd.Sum)
        hvd.allgather(mine(3))
        handle = hvd.broadcast_async_(mine(3), 0)
        assert len(open_ranges) == 1, open_ranges
        hvd.synchronize(handle)
    assert begun == ["allreduce", "allgather", "broadcast"], begun
    assert not open_ranges, open_ranges


def check_capture() -> None:
    """Check that no operation can be captured in a CUDA graph, which torch.compile's reduce-overhead mode would do."""
    tensor = mine(SIZE)
    calls = [
        lambda: hvd.allreduce(tensor),
        lambda: hvd.allreduce(tensor, op=hvd.Adasum),
        lambda: hvd.grouped_allreduce([tensor, tensor]),
        lambda: hvd.broadcast_(tensor, 0),
        lambda: hvd.allgather(tensor),
        lambda: hvd.alltoall(tensor),
        lambda: hvd.reducescatter(tensor),
        lambda: hvd.send(tensor, (RANK + 1) % SIZE),
        lambda: hvd.recv(tensor, (RANK + 1) % SIZE),
    ]
    for call in calls[: None if SIZE > 1 else -2]:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            tensor.add_(0)
            raises(RuntimeError, "cannot be captured in a CUDA graph", call)
    same(hvd.allreduce(tensor, op=hvd.Max), SIZE)


def measure() -> None:
    for elements in (1, 1 << 20, 1 << 24):
        tensor = mine(elements)
        times = []
        for _ in range(10):
            torch.cuda.synchronize()
            hvd.barrier()
            began = time.perf_counter()
            hvd.allreduce_(tensor, op=hvd.Max, name="measured")
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        if RANK == 0:
            print(f"allreduce_ of {elements * 4} bytes on {SIZE} ranks: {min(times) * 1e6:.0f} us")


for check in (
    check_every_operation,
    check_dtypes,
    check_integer_averages,
    check_negative_bits,
    check_streams,
    check_asynchrony,
    check_autograd,
    check_errors,
    check_compiled,
    check_ranges,
    check_capture,
    measure,
):
    check()
torch.cuda.synchronize()
print("all checks passed")
sys.stdout.flush()
hvd.shutdown()
