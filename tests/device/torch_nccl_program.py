# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_torch_nccl.py. All ranks use the one GPU; every check raises when it fails."""

import os
import signal
import sys
import time
from collections.abc import Callable

import torch

import horovod.torch as hvd

hvd.init()
DEVICE = torch.device("cuda", 0)
SIZE, RANK = hvd.size(), hvd.rank()
DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.bool,
]  # fmt: skip
OPS = {"sum": hvd.Sum, "average": hvd.Average, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}


def small(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return values whose sums and products are exact in every type, on the host."""
    generator = torch.Generator().manual_seed(1000 * seed + RANK)
    return torch.randint(0, 2 if dtype == torch.bool else 3, shape, generator=generator).to(dtype)


def compare(what: str, call: Callable[[torch.Tensor, str], torch.Tensor], tensor: torch.Tensor) -> None:
    """Check that the operation gives the same result on the host and on the GPU."""
    wanted = call(tensor.clone(), f"{what} on the host")
    got = call(tensor.to(DEVICE), f"{what} on the GPU")
    assert got.device == DEVICE, what
    exact = not tensor.dtype.is_floating_point
    tolerance = 0.0 if exact else {2: 1e-2, 4: 1e-6, 8: 1e-12}[tensor.element_size()]
    torch.testing.assert_close(got.cpu(), wanted, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def check_type(dtype: torch.dtype, seed: int) -> None:
    for name, op in OPS.items():
        if dtype == torch.bool and name == "average":
            continue
        for shape in ((37,), (1 << 16,)):
            what = f"{name} of {dtype} {shape}"
            compare(
                f"allreduce {what}", lambda it, n, op=op: hvd.allreduce(it, op=op, name=n), small(shape, dtype, seed)
            )
    if dtype != torch.bool:
        scaled = lambda it, n: hvd.allreduce(it, op=hvd.Sum, name=n, prescale_factor=0.5, postscale_factor=3.0)  # noqa: E731
        compare(f"scaled {dtype}", scaled, small((1000,), dtype, seed))
        for rows in (2 * SIZE, 2 * SIZE + 1):
            tensor = small((rows, 5), dtype, seed)
            scatter = lambda it, n: hvd.reducescatter(it, op=hvd.Sum, name=n)  # noqa: E731
            compare(f"reducescatter {dtype} {rows}", scatter, tensor)
    compare(f"broadcast {dtype}", lambda it, n: hvd.broadcast(it, SIZE - 1, name=n), small((999,), dtype, seed))
    compare(f"allgather {dtype}", lambda it, n: hvd.allgather(it, name=n), small((RANK + 1, 3), dtype, seed))
    compare(f"even allgather {dtype}", lambda it, n: hvd.allgather(it, name=n), small((4, 3), dtype, seed))
    splits = torch.tensor([(RANK + to) % 3 for to in range(SIZE)], dtype=torch.int32)
    rows = small((int(splits.sum()), 7), dtype, seed)
    compare(f"alltoall {dtype}", lambda it, n: hvd.alltoall(it, splits=splits, name=n)[0], rows)


def check_integer_averages() -> None:
    """Check that averages are the exact quotient, truncated toward zero, although most sums overflow."""
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        limits = torch.iinfo(dtype)
        for rows in (1, 999, 300_001):
            dice = torch.Generator().manual_seed(rows)
            inputs = torch.randint(limits.min, limits.max + 1, (SIZE, rows, 5), generator=dice, dtype=torch.int64)
            exact = torch.div(inputs.sum(dim=0), SIZE, rounding_mode="trunc").to(dtype)
            own = inputs[RANK].to(dtype).to(DEVICE)
            what = f"{dtype} {rows}"
            (grouped,) = hvd.grouped_allreduce([own], name=f"group {what}")
            for result in (hvd.allreduce(own, name=f"average {what}"), grouped):
                assert torch.equal(result.cpu(), exact), what
            share = hvd.reducescatter(own, name=f"share {what}").cpu()
            assert torch.equal(share, torch.tensor_split(exact, SIZE)[RANK]), what


def check_groups() -> None:
    for op in (hvd.Sum, hvd.Average, hvd.Max):
        tensors = [small((1 + 17 * (k % 9),), torch.float32, k) for k in range(200)]
        on_gpu = [it.to(DEVICE) for it in tensors]
        wanted = hvd.grouped_allreduce(tensors, op=op, name=f"host {op}")
        for got, right in zip(hvd.grouped_allreduce(on_gpu, op=op, name=f"GPU {op}"), wanted, strict=True):
            torch.testing.assert_close(got.cpu(), right, rtol=1e-6, atol=1e-6)


def run_types() -> None:
    for seed, dtype in enumerate(DTYPES):
        check_type(dtype, seed)
    check_integer_averages()
    check_groups()
    torch.cuda.synchronize()
    hvd.shutdown()
    hvd.init()  # a second world, with its own communicators
    tensor = torch.ones(1000, device=DEVICE)
    assert torch.all(hvd.allreduce(tensor, op=hvd.Sum) == SIZE)
    hvd.shutdown()
    print("all checks passed", flush=True)


def run_frozen() -> None:
    """Stop the last rank during allreduces. The others get an error and can use their GPU again."""
    tensor = torch.ones(4 << 20, device=DEVICE)
    hvd.allreduce_(tensor, op=hvd.Max, name="before")
    torch.cuda.synchronize()
    hvd.barrier()
    began = time.monotonic()
    try:
        for turn in range(10**6):
            if RANK == SIZE - 1 and turn == 3:
                os.kill(os.getpid(), signal.SIGSTOP)
            hvd.allreduce_(tensor, op=hvd.Max, name=f"turn {turn % 4}")
            if turn % 4 == 3:
                torch.cuda.synchronize()
    except hvd.HorovodInternalError as error:
        print(f"raised after {time.monotonic() - began:.1f} s: {error}", flush=True)
    torch.cuda.synchronize()
    assert float((torch.ones(1 << 20, device=DEVICE) + 1).sum()) == 2 << 20
    hvd.shutdown()
    print("left", flush=True)


{"types": run_types, "frozen": run_frozen}[sys.argv[1]]()
