# SPDX-License-Identifier: Apache-2.0
"""FSDP, DTensor, functional collectives and sharded checkpoints over the horovod backend, against one process."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from harness.torch_groups import new_name, on_torch_ranks, process_group
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import FullyShardedDataParallel

pytestmark = pytest.mark.timeout(150)
STEPS = 4
all_gather_single = new_name(functional, "all_gather_single", "all_gather_tensor")
reduce_scatter_single = new_name(functional, "reduce_scatter_single", "reduce_scatter_tensor")


def network():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def batch(rank, step):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(50 * step + rank))


def train(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for inputs in batches:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def alone(size):
    """Return the model that one process trains on all ranks' batches."""
    model = network()
    train(model, [torch.cat([batch(rank, step) for rank in range(size)]) for step in range(STEPS)])
    return model.state_dict()


def close(actual, expected):
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: name + text)


@pytest.mark.checked_numbers("FSDP", against="a single process")
@on_torch_ranks("shm2")
def test_fsdp():
    with process_group() as (rank, size):
        model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True)
        train(model, [batch(rank, step) for step in range(STEPS)])
        with FullyShardedDataParallel.summon_full_params(model):
            close(dict(model.module.named_parameters()), alone(size))


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


@pytest.mark.skipif(not hasattr(torch.distributed.fsdp, "fully_shard"), reason="this torch has no fully_shard")
@on_torch_ranks("shm2")
def test_fully_shard_and_checkpoints(folder):
    from torch.distributed.fsdp import fully_shard

    with process_group() as (rank, size):
        mesh = dist.init_device_mesh("cpu", (size,))
        model = network()
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh)
        train(model, [batch(rank, step) for step in range(STEPS)])
        assert model[0].weight.to_local().shape[0] == 16 // size
        close({name: value.full_tensor() for name, value in model.state_dict().items()}, alone(size))
        checkpoint.save(model.state_dict(), checkpoint_id=folder)
        restored = network()
        plain = restored.state_dict()
        checkpoint.load(plain, checkpoint_id=folder)
        close(plain, alone(size))


@pytest.mark.skipif(not hasattr(torch.distributed.fsdp, "fully_shard"), reason="this torch has no public DTensor")
@on_torch_ranks("shm2")
def test_the_devices_of_a_group_are_known_and_checkpoints_are_written_meanwhile(folder):
    with process_group() as (rank, _):
        group = dist.group.WORLD
        assert [device.type for device in group._device_types] == ["cpu", "cuda"]
        assert group._get_backend(torch.device("cuda", 0)) is group
        with pytest.raises(RuntimeError, match="of cpu and cuda, not of xpu"):
            group._get_backend(torch.device("xpu"))
        state = {"shared": torch.arange(6.0), f"of rank {rank}": torch.full((3,), float(rank))}
        checkpoint.async_save(state, checkpoint_id=folder).result()
        loaded = {name: torch.zeros_like(value) for name, value in state.items()}
        checkpoint.load(loaded, checkpoint_id=folder)
        for name, value in state.items():
            assert torch.equal(loaded[name], value)


@on_torch_ranks("shm2")
def test_functional_collectives_and_dtensor():
    with process_group() as (rank, size):
        ranks = list(range(size))
        total = functional.all_reduce(torch.full((4,), float(rank)), "sum", dist.group.WORLD)
        assert total.tolist() == [sum(ranks)] * 4
        gathered = all_gather_single(torch.full((2,), float(rank)), 0, dist.group.WORLD)
        assert gathered.tolist() == [float(other) for other in ranks for _ in range(2)]
        scattered = reduce_scatter_single(torch.arange(4.0), "sum", 0, dist.group.WORLD)
        assert scattered.tolist() == [size * value for value in torch.arange(4.0).chunk(size)[rank].tolist()]
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = dist.init_device_mesh("cpu", (size,))
        left, right = torch.arange(24.0).view(4, 6), torch.arange(18.0).view(6, 3)
        rows = distribute_tensor(left, mesh, [Shard(1)])
        columns = distribute_tensor(right, mesh, [Shard(0)])
        product = (rows @ columns).redistribute(mesh, [Replicate()])
        assert torch.equal(product.to_local(), left @ right)
        moved = distribute_tensor(left, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
        assert torch.equal(moved.full_tensor(), left)
