# SPDX-License-Identifier: Apache-2.0
"""hvd.allreduce(compression=hvd.Compression.int8()): values of a simulation, gradients, and refused arguments."""

import numpy as np
import pytest
import torch
from harness.compressed_exchange import Simulation, int8
from harness.torch_training import on_torch_ranks as on_ranks

import horovod.torch as hvd
from horovod.common.context import default_context

COUNT = 3 * 4096 + 10
INT8 = hvd.Compression.int8(min_bytes=0)


def values(rank, count=COUNT):
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32)


def expected(hosts, count=COUNT):
    arrays = [values(rank, count) for rank in range(hvd.size())]
    if len(set(hosts)) == 1:
        return np.mean(arrays, 0)
    return Simulation(hosts, int8(256), two_stages=True, feedback=False).step(arrays)


@on_ranks("shm2", "hosts3", "hosts4")
@pytest.mark.parametrize("scope", ["host", "all"])
def test_values_are_those_of_one_process_and_of_every_call(scope):
    method = hvd.Compression.int8(scope=scope, min_bytes=0)
    tensor = torch.from_numpy(values(hvd.rank()))
    kept = tensor.clone()
    hosts = hvd.allgather_object(default_context.topology.host) if scope == "host" else list(range(hvd.size()))
    found = [hvd.allreduce(tensor, compression=method, name=name) for name in ("x", "x", None, None)]
    for it in found:
        np.testing.assert_allclose(it.numpy(), expected(hosts), rtol=1e-4, atol=1e-5)
        assert torch.equal(it, found[0])  # no residual is kept between calls
    assert torch.equal(tensor, kept)
    summed = hvd.allreduce(tensor, op=hvd.Sum, compression=method, prescale_factor=0.5, postscale_factor=2.0)
    torch.testing.assert_close(summed, found[0] * hvd.size(), rtol=1e-4, atol=1e-4)
    return found[0].numpy().tobytes().hex()[:4000]  # all ranks must return equal bits


@on_ranks("hosts3")
def test_shapes_dtypes_small_tensors_and_process_sets():
    tensor = torch.from_numpy(values(hvd.rank())).view(2, -1)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        found = hvd.allreduce(tensor.to(dtype), compression=INT8)
        assert found.dtype is dtype
        assert found.shape == tensor.shape
        torch.testing.assert_close(found.float(), hvd.allreduce(tensor), rtol=0, atol=0.06)
    small = hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), compression=hvd.Compression.int8())
    assert small.item() == 2.0  # not compressed because it is smaller than min_bytes
    pair = hvd.add_process_set([0, 2])
    if hvd.rank() != 1:
        found = hvd.allreduce(torch.ones(5000) * hvd.rank(), compression=INT8, process_set=pair)
        torch.testing.assert_close(found, torch.ones(5000))
    hvd.remove_process_set(pair)


@on_ranks("hosts3")
def test_the_gradient_is_reduced_in_the_same_way():
    tensor = torch.ones(5000, requires_grad=True)
    (hvd.allreduce(tensor, compression=INT8, name="g") * (1.0 + hvd.rank())).sum().backward()
    torch.testing.assert_close(tensor.grad, torch.full((5000,), 2.0))


@on_ranks("hosts3")
def test_ranks_that_want_different_things_learn_of_it():
    mine = hvd.Compression.int8(block=256 if hvd.rank() < 2 else 512, min_bytes=0)
    with pytest.raises(hvd.HorovodMismatchError, match=r"block=256.* on rank 0, .*block=512.* on rank 2"):
        hvd.allreduce(torch.ones(5000), compression=mine, name="differs")
    with pytest.raises(hvd.HorovodMismatchError, match=r"of 5000 values of float32 on rank 0, .* of 5001 values"):
        hvd.allreduce(torch.ones(5000 + (hvd.rank() == 1)), compression=INT8, name="differs in size")
    assert hvd.allreduce(torch.ones(5000), compression=INT8, name="differs")[0] == 1.0


@on_ranks("shm2")
def test_what_is_refused():
    dense, compression = torch.ones(8), hvd.Compression
    for method in (compression.onebit(), compression.topk(0.1), compression.dgc(0.1, 0.9), compression.powersgd()):
        with pytest.raises(ValueError, match=rf"does not support compression={method.name}\(.*DistributedOptimizer"):
            hvd.allreduce(dense, compression=method)
    for op in (hvd.Adasum, hvd.Max):
        with pytest.raises(ValueError, match=r"compression=int8\(.* supports op=hvd.Average and op=hvd.Sum only"):
            hvd.allreduce(dense, compression=INT8, op=op)
    with pytest.raises(ValueError, match=r"compression=int8\(.* does not support sparse tensors"):
        hvd.allreduce(dense.to_sparse(), compression=INT8)
    with pytest.raises(ValueError, match=r"compression=int8\(.* supports floating-point tensors, not torch.int32"):
        hvd.allreduce(dense.int(), compression=INT8)


@on_ranks("shm2")
def test_a_sparse_gradient_is_refused_by_its_name_and_the_methods():
    table = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), compression=INT8
    )

    def step():
        table(torch.tensor([1])).sum().backward()
        optimizer.step()

    with pytest.raises(ValueError, match=r"gradient of 'weight' is sparse.*int8\(.*sparse_as_dense=True"):
        step()
