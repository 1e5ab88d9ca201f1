# SPDX-License-Identifier: Apache-2.0
"""Uses of horovod.torch by public projects: their calls in their order, in code written for this test.

docs/projects.md names the projects, the files that were read and their commits. The first line of each test names the
project. Where a project trains, K ranks must get the weights of one process that has all of the data.
"""

import importlib
import pickle
from contextlib import ExitStack

import pytest
import torch
from harness.torch_training import (
    OPTIMIZERS,
    batches,
    check_same_weights,
    loss_of,
    make_model,
    on_torch_ranks,
    shard,
    train_alone,
    weights,
)
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod
from horovod import torch as hvd

STEPS = 4


def make_model_of_this_rank():
    """Return the model that a script has before the broadcast if it seeds each rank differently."""
    model = make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(float(hvd.rank()))
    return model


def backward(model, images, labels):
    loss = loss_of(model, shard(images), shard(labels))
    loss.backward()
    return loss


@on_torch_ranks("shm2")
def test_training_script_with_metrics_that_share_a_name():
    """tczhangzhi/pytorch-distributed: broadcasts, then wraps with fp16; reduces losses and counts as 'barrier'."""
    model = make_model_of_this_rank()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    named = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named, compression=hvd.Compression.fp16)
    data = TensorDataset(*next(batches(1)))
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    seen = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.1**epoch
        for images, labels in loader:
            output = model(images)
            loss = functional.cross_entropy(output, labels)
            correct = (output.argmax(1) == labels).float().sum(0, keepdim=True)
            seen += [hvd.allreduce(value.clone(), name="barrier").tolist() for value in (loss, correct)]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert len(seen) == 2 * 2 * len(loader)
    return seen, check_same_weights(model, weights(model))


@on_torch_ranks("shm2")
def test_one_optimizer_for_each_parameter_made_after_backward():
    """pyro-ppl/pyro: makes and wraps an optimizer for each parameter when its first gradient exists."""
    model = make_model()
    names = {parameter: f"store.{name}" for name, parameter in model.named_parameters()}
    optimizers = {}
    for images, labels in batches(STEPS):
        backward(model, images, labels)
        for parameter in sorted(names, key=names.__getitem__):
            if parameter not in optimizers:
                plain = OPTIMIZERS["adam"]([parameter])
                named = [(names[parameter], parameter)]
                optimizers[parameter] = hvd.DistributedOptimizer(plain, named_parameters=named)
            optimizers[parameter].step()
        for parameter in names:
            parameter.grad = torch.zeros_like(parameter)
    return check_same_weights(model, train_alone(OPTIMIZERS["adam"], STEPS))


@on_torch_ranks("shm2", "shm4")
def test_computation_model_of_a_framework():
    """pytorch/ignite: operations by hvd.mpi_ops, Min, Max and Product by allgather, horovod.run as the spawner."""
    with pytest.raises(ImportError):
        importlib.import_module("horovod.run.runner")  # Horovod had the module there before 0.20
    assert callable(horovod.run)
    major, minor = map(int, horovod.__version__.split(".")[:2])
    assert (major, minor) >= (0, 23)  # from this version on ignite calls hvd.barrier() with all its arguments
    hvd.init(comm=None)
    mine = torch.tensor([hvd.rank() + 1, 5 - hvd.rank()])
    reduced = {op: hvd.allreduce(mine, op=getattr(hvd.mpi_ops, op)).tolist() for op in ("Sum", "Average")}
    every = torch.tensor([[rank + 1, 5 - rank] for rank in range(hvd.size())])
    assert reduced == {"Sum": every.sum(0).tolist(), "Average": (every.sum(0) // hvd.size()).tolist()}
    gathered = hvd.allgather(mine.unsqueeze(0))
    for function, expected in ((torch.min, every.amin(0)), (torch.max, every.amax(0)), (torch.prod, every.prod(0))):
        found = function(gathered, dim=0)
        assert (found if isinstance(found, torch.Tensor) else found[0]).tolist() == expected.tolist()
    assert hvd.allgather(torch.tensor(hvd.rank()).unsqueeze(0)).tolist() == list(range(hvd.size()))
    assert hvd.broadcast(torch.tensor(float(hvd.rank())), root_rank=hvd.size() - 1).item() == hvd.size() - 1
    hvd.barrier()
    assert hvd.allreduce(torch.ones(2), op=hvd.mpi_ops.Adasum).tolist() == [1.0, 1.0]


def contrastive(images, texts):
    logits = 10 * images @ texts.T
    labels = torch.arange(len(logits))
    return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2


@pytest.mark.parametrize("with_gradients", [True, False])
@on_torch_ranks("shm2")
def test_contrastive_loss_over_the_features_of_all_ranks(with_gradients):
    """mlfoundations/open_clip: allgather inside the loss, and two groups of parameters in the wrapped AdamW."""
    images, texts = (torch.randn(4 * hvd.size(), 6, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    mine = slice(4 * hvd.rank(), 4 * (hvd.rank() + 1))

    def towers():
        torch.manual_seed(3)
        model = torch.nn.ModuleDict({"image": torch.nn.Linear(6, 5), "text": torch.nn.Linear(6, 5)})
        few, many = ([p for p in model.parameters() if (p.ndim < 2) is is_few] for is_few in (True, False))
        groups = [{"params": few, "weight_decay": 0.0}, {"params": many, "weight_decay": 0.2}]
        return model, torch.optim.AdamW(groups, lr=0.1)

    model, plain = towers()
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    features = [functional.normalize(model[name](of[mine])) for name, of in (("image", images), ("text", texts))]
    if with_gradients:
        gathered = [hvd.allgather(one) for one in features]
    else:
        with torch.no_grad():
            parts = [list(hvd.allgather(one).chunk(hvd.size())) for one in features]
        for part, one in zip(parts, features, strict=True):
            part[hvd.rank()] = one
        gathered = [torch.cat(part) for part in parts]
    loss = contrastive(*gathered)
    loss.backward()
    optimizer.step()

    alone, _ = towers()
    whole = contrastive(*(functional.normalize(alone[n](of)) for n, of in (("image", images), ("text", texts))))
    whole.backward()
    torch.testing.assert_close(loss, whole)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        # Every rank has the gradient of its own rows only, and the optimizer averages these parts.
        torch.testing.assert_close(ours.grad * hvd.size(), theirs.grad)
    return check_same_weights(model, weights(model))


@on_torch_ranks("shm2")
def test_strategy_that_synchronizes_clips_and_steps():
    """ludwig-ai/ludwig: wraps our functions under its own names, uses horovod.torch.optimizer, allreduce as barrier."""
    from horovod.torch.optimizer import _DistributedOptimizer

    model = make_model_of_this_rank()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["adam"](model.parameters()), model.named_parameters())
    assert isinstance(optimizer, _DistributedOptimizer)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert hvd.broadcast_object({"seed": hvd.rank()}) == {"seed": 0}
    alone = make_model()
    plain = OPTIMIZERS["adam"](alone.parameters())
    for images, labels in batches(STEPS):
        optimizer.zero_grad()
        backward(model, images, labels)
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        assert hvd.allreduce(torch.as_tensor([0], dtype=torch.int)).tolist() == [0]
        plain.zero_grad()
        loss_of(alone, images, labels).backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        plain.step()
    return check_same_weights(model, weights(alone))


@on_torch_ranks("shm2")
def test_backend_that_is_imported_by_name_and_names_no_parameters():
    """lucidrains/DALLE-pytorch: horovod.torch by importlib, an optimizer without names, join() as a barrier."""
    backend = importlib.import_module("horovod.torch")
    backend.init()
    model = make_model_of_this_rank()
    optimizer = backend.DistributedOptimizer(OPTIMIZERS["adam"](model.parameters()))
    backend.broadcast_parameters(model.state_dict(), root_rank=0)
    backend.broadcast_optimizer_state(optimizer, root_rank=0)
    losses = []
    for images, labels in batches(STEPS):
        backend.join()
        loss = backward(model, images, labels)
        losses.append(backend.allreduce(loss).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, check_same_weights(model, train_alone(OPTIMIZERS["adam"], STEPS))


@on_torch_ranks("shm2")
def test_actor_and_critic_whose_parameters_have_the_same_names():
    """Denys88/rl_games: two wrapped optimizers, running statistics broadcast as state dicts, averages by name."""
    models = [make_model_of_this_rank() for _ in ("actor", "critic")]
    optimizers = [OPTIMIZERS["adam"](model.parameters()) for model in models]
    for index, model in enumerate(models):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizers[index], root_rank=0)
        optimizers[index] = hvd.DistributedOptimizer(optimizers[index], named_parameters=model.named_parameters())
    statistics = torch.nn.BatchNorm1d(3, affine=False).double()
    statistics.running_mean += hvd.rank()
    statistics.num_batches_tracked += hvd.rank()
    for name, state in {"observations": statistics.state_dict(), "rewards": statistics.state_dict()}.items():
        hvd.broadcast_parameters(state, root_rank=0)
        assert statistics.running_mean.tolist() == [0.0] * 3, name
    averages = []
    for images, labels in batches(STEPS):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss = backward(model, images, labels).detach()
            optimizer.step()
            averages.append(hvd.allreduce(loss, name="kl").item())
    expected = train_alone(OPTIMIZERS["adam"], STEPS)
    return averages, [check_same_weights(model, expected) for model in models]


@on_torch_ranks("shm2")
def test_gradients_in_a_buffer_of_its_own_and_pickles_of_any_length():
    """ChenRocks/UNITER: in-place operations on parts of a buffer, objects gathered as bytes of different lengths."""
    model = make_model_of_this_rank()
    tensors = [parameter.data for parameter in model.parameters()]
    buffer = torch.zeros(sum(one.numel() for one in tensors) + 7)

    def through_the_buffer(collective, these):
        filled = 0
        for one in these:
            buffer[filled : filled + one.numel()].copy_(one.reshape(-1))
            filled += one.numel()
        collective(buffer[:filled])
        for one, part in zip(these, buffer[:filled].split([one.numel() for one in these]), strict=True):
            one.copy_(part.view_as(one))

    through_the_buffer(lambda part: hvd.broadcast_(part, 0), tensors)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    for images, labels in batches(STEPS):
        optimizer.zero_grad()
        backward(model, images, labels)
        gradients = [parameter.grad for parameter in model.parameters()]
        through_the_buffer(hvd.allreduce_, gradients[:2])
        through_the_buffer(hvd.allreduce_, gradients[2:])
        optimizer.step()

    data = {"rank": hvd.rank(), "padding": "x" * 10 * hvd.rank()}
    encoded = torch.frombuffer(bytearray(pickle.dumps(data)), dtype=torch.uint8)
    lengths = hvd.allgather(torch.tensor([encoded.numel()])).tolist()
    assert max(lengths) > min(lengths)
    parts = hvd.allgather(encoded).split(lengths)
    assert [pickle.loads(bytes(part.tolist()))["rank"] for part in parts] == list(range(hvd.size()))
    return check_same_weights(model, train_alone(OPTIMIZERS["adam"], STEPS))


@on_torch_ranks("shm2", "shm4")
def test_preconditioner_that_starts_everything_and_then_waits():
    """gpauloski/kfac-pytorch: unnamed asynchronous operations in place, results of each layer from another rank."""
    factors = [torch.full((size, size), float(hvd.rank() + size)) for size in range(1, 12)]
    for handle in [hvd.allreduce_async_(factor, op=hvd.Average) for factor in factors]:
        hvd.synchronize(handle)
    middle = (hvd.size() - 1) / 2
    assert [factor[0, 0].item() for factor in factors] == [middle + size for size in range(1, 12)]
    roots = [index % hvd.size() for index in range(len(factors))]
    inverses = [torch.full_like(factor, float(hvd.rank())) for factor in factors]
    handles = [hvd.broadcast_async_(one, root_rank=root) for one, root in zip(inverses, roots, strict=True)]
    for handle in handles:
        hvd.synchronize(handle)
    assert [int(inverse[0, 0]) for inverse in inverses] == roots
    trace = torch.tensor(float(hvd.rank()))
    hvd.allreduce_(trace, op=hvd.Sum)
    assert trace.item() == hvd.size() * middle
    hvd.allreduce(torch.tensor(1), name="barrier")


@pytest.mark.parametrize("passes", [1, 2])
@on_torch_ranks("shm2")
def test_strategy_that_never_lets_step_synchronize(passes):
    """Lightning-AI/pytorch-lightning 1.9: skip_synchronize() for the whole fit, synchronize() after each backward."""
    model = make_model_of_this_rank()
    halves = [list(model[:3].parameters()), list(model[3:].parameters())]
    optimizers = [torch.optim.SGD(half, 0.05) for half in halves]
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] *= hvd.size()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    named = [[(n, p) for n, p in model.named_parameters() if any(p is one for one in half)] for half in halves]
    wrapped = [
        hvd.DistributedOptimizer(optimizer, named_parameters=names, backward_passes_per_step=passes)
        for optimizer, names in zip(optimizers, named, strict=True)
    ]
    with ExitStack() as stack:
        for optimizer in wrapped:
            stack.enter_context(optimizer.skip_synchronize())
        for number, (images, labels) in enumerate(batches(STEPS)):
            backward(model, images, labels)
            for optimizer in wrapped:
                optimizer.synchronize()
            if (number + 1) % passes == 0:
                for optimizer in wrapped:
                    optimizer.step()
                    optimizer.zero_grad()
    hvd.join()
    assert hvd.broadcast_object(["a", hvd.rank()], hvd.size() - 1) == ["a", hvd.size() - 1]
    hvd.join()
    assert hvd.allgather(torch.tensor(float(hvd.rank())).reshape(1)).tolist() == [*range(hvd.size())]

    alone = make_model()
    plain = torch.optim.SGD(alone.parameters(), 0.05 * hvd.size())
    for number, (images, labels) in enumerate(batches(STEPS)):
        loss_of(alone, images, labels).backward()
        if (number + 1) % passes == 0:
            plain.step()
            plain.zero_grad()
    return check_same_weights(model, weights(alone), tolerance=1e-5)
