# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of parameters, optimizer state and objects reach all ranks, whatever these had before."""

import copy

import pytest
import torch
from harness.torch_training import on_torch_ranks

import horovod.torch as hvd
from horovod.torch import functions

TWO_AND_FOUR = ("shm2", "shm4")


def make_model(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(64, 5)
    )
    return model.to(memory_format=torch.channels_last)


def equal_everywhere(tensors, root):
    """Check that all ranks hold the root's tensors."""
    everyone = hvd.allgather_object([tensor.detach().clone() for tensor in tensors], name="check")
    assert len(everyone[root]) == len(everyone[hvd.rank()])
    for mine, expected in zip(everyone[hvd.rank()], everyone[root], strict=True):
        assert mine.dtype == expected.dtype
        torch.testing.assert_close(mine, expected, rtol=0, atol=0)


@on_torch_ranks(*TWO_AND_FOUR)
def test_broadcast_parameters_of_every_kind():
    root = hvd.size() - 1
    model = make_model(hvd.rank())
    weight = model[0].weight
    assert not weight.is_contiguous()
    strides, address = weight.stride(), weight.data_ptr()
    functions.broadcast_parameters(model.state_dict(), root_rank=root)
    equal_everywhere(model.state_dict().values(), root)
    assert (weight.stride(), weight.data_ptr()) == (strides, address)

    functions.broadcast_parameters(model.named_parameters(), root_rank=0)
    equal_everywhere(model.parameters(), 0)

    tensors = [
        torch.full((2, 3), hvd.rank() + 1.0).t(),
        torch.full((3,), complex(hvd.rank(), 1), dtype=torch.complex64),
        torch.tensor(hvd.rank()),
        torch.tensor([hvd.rank() > 0]),
        torch.empty(0, 4),
        torch.full((4,), hvd.rank(), dtype=torch.bfloat16),
    ]
    functions.broadcast_parameters(tensors, root_rank=root)
    equal_everywhere(tensors, root)
    assert tensors[0].unique().tolist() == [root + 1.0]
    assert tensors[1].tolist() == [complex(root, 1)] * 3


@on_torch_ranks(*TWO_AND_FOUR)
def test_what_is_no_tensor_in_a_dict_is_replaced():
    state = {"weight": torch.full((2,), float(hvd.rank())), "seen": hvd.rank(), "extra": {"rank": hvd.rank()}}
    functions.broadcast_parameters(state, root_rank=1)
    assert state["weight"].tolist() == [1.0, 1.0]
    assert (state["seen"], state["extra"]) == (1, {"rank": 1})


@on_torch_ranks("shm2")
def test_what_cannot_be_broadcast_is_refused():
    for wrong in ("weights", 5, torch.ones(2), [5], [("count", 5)]):
        with pytest.raises(ValueError, match="broadcast_parameters"):
            functions.broadcast_parameters(wrong, root_rank=0)
    with pytest.raises(ValueError, match="no shape yet"):
        functions.broadcast_parameters(torch.nn.LazyLinear(3).named_parameters(), root_rank=0)
    weight = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="LBFGS"):
        functions.broadcast_optimizer_state(torch.optim.LBFGS([weight]), root_rank=0)


OPTIMIZERS = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd-momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "adam": ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    "adam-tensor-lr": ("Adam", {"lr": torch.tensor(0.01)}),
    "adamw": ("AdamW", {}),
    "adamax": ("Adamax", {}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "adadelta": ("Adadelta", {}),
    "adagrad": ("Adagrad", {}),
    "asgd": ("ASGD", {}),
    "rmsprop": ("RMSprop", {"momentum": 0.9, "centered": True}),
    "rprop": ("Rprop", {}),
    "adafactor": ("Adafactor", {}),
    "muon": ("Muon", {}),
}
AVAILABLE = [name for name, (kind, _) in OPTIMIZERS.items() if hasattr(torch.optim, kind)]


class Net(torch.nn.Module):
    """Module with matrices, and a vector unless `only_matrices` is set (Muon accepts only matrices)."""

    def __init__(self, only_matrices):
        super().__init__()
        self.first = torch.nn.Linear(3, 4, bias=not only_matrices)
        self.second = torch.nn.Linear(4, 2, bias=False)

    def forward(self, inputs):
        return self.second(torch.tanh(self.first(inputs)))


def train(model, optimizer, steps, seed):
    for step in range(steps):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(1000 * seed + step)
        model(torch.randn(5, 3, generator=generator)).square().sum().backward()
        optimizer.step()


def flattened(optimizer):
    """Return state and options of an optimizer as Python values that can be compared, types included."""

    def plain(value):
        if isinstance(value, torch.Tensor):
            return "tensor", str(value.dtype), str(value.device), value.tolist()
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(plain(item) for item in value)
        return type(value).__name__, value

    return plain(optimizer.state_dict())


@on_torch_ranks(*TWO_AND_FOUR)
@pytest.mark.parametrize("name", AVAILABLE)
def test_optimizer_state(name):
    kind, options = OPTIMIZERS[name]
    torch.manual_seed(hvd.rank())
    model = Net(kind == "Muon")
    optimizer = getattr(torch.optim, kind)(model.parameters(), **copy.deepcopy(options))
    root = 1

    # Only the root has trained before: it has made steps, and its options have changed.
    if hvd.rank() == root:
        train(model, optimizer, steps=3, seed=7)
        group = optimizer.param_groups[0]
        group["lr"] = group["lr"] * 0.5
        group["initial_lr"] = 0.25
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    functions.broadcast_optimizer_state(optimizer, root_rank=root)
    everyone = hvd.allgather_object(flattened(optimizer), name="check")
    assert all(state == everyone[root] for state in everyone)
    for before, after in zip(parameters, model.parameters(), strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0)

    # From here on, equal parameters and equal gradients must give equal results.
    functions.broadcast_parameters(model.state_dict(), root_rank=root)
    train(model, optimizer, steps=2, seed=8)
    equal_everywhere(model.parameters(), root)

    # Now state exists on all ranks and differs: the broadcast must overwrite the tensors in place.
    train(model, optimizer, steps=1, seed=9 + hvd.rank())
    lying = {id(value) for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)}
    functions.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
    assert lying == {
        id(value) for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)
    }
    everyone = hvd.allgather_object(flattened(optimizer), name="check")
    assert all(state == everyone[0] for state in everyone)


@on_torch_ranks("shm2")
def test_state_that_the_root_does_not_have_is_dropped():
    model = Net(False)
    optimizer = torch.optim.Adam(model.parameters())
    if hvd.rank() == 1:
        train(model, optimizer, steps=1, seed=1)
        optimizer.state["only here"] = 1
    functions.broadcast_optimizer_state(optimizer, root_rank=0)
    assert "only here" not in optimizer.state
    assert not any(optimizer.state.values())


@pytest.mark.checked_numbers("training after the broadcast of a fresh optimizer", against="a single process")
@on_torch_ranks("shm2")
@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize("name", AVAILABLE)
def test_a_fresh_optimizer_stays_fresh(name, distributed):
    kind, options = OPTIMIZERS[name]
    torch.manual_seed(5)
    model = Net(kind == "Muon")
    twin = copy.deepcopy(model)
    alone = getattr(torch.optim, kind)(twin.parameters(), **copy.deepcopy(options))
    optimizer = getattr(torch.optim, kind)(model.parameters(), **copy.deepcopy(options))
    stepped = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(True))
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    functions.broadcast_optimizer_state(optimizer, root_rank=1, model=model)
    assert flattened(optimizer) == flattened(alone)  # Adagrad has state before its first step
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not stepped
    # Training continues as if there had been no broadcast.
    train(model, optimizer, steps=2, seed=3)
    train(twin, alone, steps=2, seed=3)
    for parameter, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=0)


class Counts(torch.optim.SGD):
    """Optimizer that counts its steps under a name that no optimizer of torch uses, and divides by the count."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["t"] = state.get("t", 0) + 1
                parameter -= group["lr"] * parameter.grad / state["t"]


FRESH = {
    "dampening": (lambda weights: torch.optim.SGD(weights, 1.0, momentum=0.9, dampening=0.9), [-1.0, -2.0, -3.0]),
    "own counter": (lambda weights: Counts(weights, 1.0), [-1.0, -1.5, -1.5 - 1 / 3]),
}


@pytest.mark.checked_numbers("first steps of optimizers with dampening or a counter", against="a single process")
@on_torch_ranks("shm2")
@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize("name", FRESH)
def test_the_first_step_after_the_broadcast_is_the_first(name, distributed):
    make_optimizer, expected = FRESH[name]
    weight = torch.nn.Parameter(torch.zeros(()))
    unused = torch.nn.Parameter(torch.ones(()))
    optimizer = make_optimizer([weight])
    optimizer.add_param_group({"params": [unused], "weight_decay": 0.5, "momentum": 0.0})
    # DistributedOptimizer gives unused parameters zero gradients, so that all ranks agree.
    if distributed and name == "dampening":
        optimizer.param_groups[1]["weight_decay"] = 0.0
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer)
    functions.broadcast_optimizer_state(optimizer, root_rank=0)
    assert (weight.grad, unused.grad) == (None, None)
    values = []
    for _ in range(3):
        weight.grad = None
        weight.backward()
        if name == "own counter" and not distributed:
            unused.grad = torch.zeros(())
        optimizer.step()
        values.append(weight.item())
    assert values == pytest.approx(expected)
    assert unused.item() == 1.0  # the broadcast left no zero gradient, to which weight decay would be added


@on_torch_ranks("shm2")
def test_a_rank_that_has_state_where_the_root_has_none_is_emptied():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], 0.1 * (1 + hvd.rank()), momentum=0.9)
    if hvd.rank() == 1:
        weight.sum().backward()
        optimizer.step()
        assert optimizer.state
    functions.broadcast_optimizer_state(optimizer, root_rank=0)
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.1
    # The state is still torch's dictionary, which creates an entry for every parameter.
    optimizer.state[weight]["here"] = 1
    optimizer.state.pop(weight)
    assert optimizer.state[weight] == {}


@on_torch_ranks("shm2")
def test_tensor_options_of_a_fresh_optimizer_keep_their_identity():
    weight = torch.nn.Parameter(torch.zeros(2))
    rate = torch.tensor(0.1 * (1 + hvd.rank()))
    optimizer = torch.optim.Adam([weight], rate, foreach=False)
    optimizer.param_groups[0]["bounds"] = [torch.tensor(1.0 + hvd.rank()), None]
    functions.broadcast_optimizer_state(optimizer, root_rank=1)
    group = optimizer.param_groups[0]
    assert group["lr"] is rate
    assert rate.item() == pytest.approx(0.2)
    assert group["bounds"][0].item() == 2.0
    assert not optimizer.state


class NeedsClosure(torch.optim.SGD):
    def step(self, closure):
        with torch.enable_grad():
            closure()
        return super().step()


@on_torch_ranks("shm2")
def test_a_fresh_optimizer_that_cannot_step_alone_stays_as_it_is():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = NeedsClosure([weight], lr=0.1 * (1 + hvd.rank()), momentum=0.9)
    functions.broadcast_optimizer_state(optimizer, root_rank=0)
    assert not optimizer.state
    assert weight.grad is None
    assert optimizer.param_groups[0]["lr"] == 0.1


@on_torch_ranks("shm2")
def test_sparse_adam_and_embeddings():
    torch.manual_seed(hvd.rank())
    model = torch.nn.Embedding(6, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    if hvd.rank() == 0:
        model(torch.tensor([1, 4])).sum().backward()
        optimizer.step()
    functions.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
    everyone = hvd.allgather_object(flattened(optimizer), name="check")
    assert everyone[0] == everyone[1]
    assert everyone[0]["state"]


@on_torch_ranks(*TWO_AND_FOUR)
def test_a_distributed_optimizer_that_only_the_root_resumed():
    torch.manual_seed(hvd.rank())
    model = Net(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if hvd.rank() == 0:
        source = Net(False)
        checkpointed = torch.optim.Adam(source.parameters(), lr=0.3, weight_decay=0.1)
        train(source, checkpointed, steps=3, seed=4)
        model.load_state_dict(source.state_dict())
        checkpoint = checkpointed.state_dict()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    if hvd.rank() == 0:
        optimizer.load_state_dict(checkpoint)
    functions.broadcast_parameters(model.state_dict(), root_rank=0)
    functions.broadcast_optimizer_state(optimizer, root_rank=0)
    train(model, optimizer, steps=2, seed=5)
    equal_everywhere(model.parameters(), 0)
    assert optimizer.param_groups[0]["lr"] == 0.3
    everyone = hvd.allgather_object(flattened(optimizer), name="check")
    assert all(state == everyone[0] for state in everyone)
    assert {state["step"].item() for state in optimizer.state.values()} == {5.0}


class Odd(torch.optim.SGD):
    """Optimizer with state that torch's optimizers do not have: lists of tensors, numbers, state of no parameter."""

    def fill(self, number):
        self.state["rounds"] = number
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {
                    "history": [torch.full((2,), float(number)), None],
                    "step": number,
                    "seen": {"mean": torch.tensor(float(number))},
                    "lookup": torch.tensor([[0.0, number]]).to_sparse(),
                }


@on_torch_ranks("shm2")
def test_state_of_odd_shapes():
    model = torch.nn.Linear(2, 1)
    optimizer = Odd(model.parameters(), lr=0.1)
    if hvd.rank() == 0:
        optimizer.fill(5)
    functions.broadcast_optimizer_state(optimizer, root_rank=0)
    state = optimizer.state[model.weight]
    assert optimizer.state["rounds"] == 5
    assert state["history"][0].tolist() == [5.0, 5.0]
    assert state["history"][1] is None
    assert state["step"] == 5
    assert state["seen"]["mean"].item() == 5.0
    assert state["lookup"].to_dense().tolist() == [[0.0, 5.0]]


@on_torch_ranks("shm2")
def test_state_has_the_memory_format_of_its_parameter():
    model = make_model(hvd.rank())
    optimizer = torch.optim.Adam(model.parameters())
    if hvd.rank() == 0:
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    functions.broadcast_optimizer_state(optimizer, root_rank=0)
    moments = optimizer.state[model[0].weight]["exp_avg"]
    assert moments.stride() == model[0].weight.stride()
    equal_everywhere([moments], 0)


@on_torch_ranks("shm2")
def test_other_parameter_groups_are_named():
    model = Net(False)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters if hvd.rank() == 0 else parameters[:2], lr=0.1)
    if hvd.rank() == 0:
        functions.broadcast_optimizer_state(optimizer, root_rank=0)
    else:
        with pytest.raises(ValueError, match=r"hold \[2\] parameters here but \[3\] on the root"):
            functions.broadcast_optimizer_state(optimizer, root_rank=0)


@on_torch_ranks("shm4")
def test_process_sets():
    even = hvd.add_process_set([0, 2])
    torch.manual_seed(hvd.rank())
    model = Net(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + hvd.rank()))
    before = model.first.weight.detach().clone()
    if even.included():
        functions.broadcast_parameters(model.state_dict(), root_rank=2, process_set=even)
        functions.broadcast_optimizer_state(optimizer, root_rank=2, process_set=even)
    weights = hvd.allgather_object((before.tolist(), model.first.weight.tolist(), optimizer.param_groups[0]["lr"]))
    assert weights[0][1:] == weights[2][1:]
    assert weights[1][0] == weights[1][1]
    hvd.remove_process_set(even)


@on_torch_ranks(*TWO_AND_FOUR)
def test_objects_with_tensors():
    mine = {"tensor": torch.arange(3) + hvd.rank(), "nested": [torch.ones(2, dtype=torch.bfloat16) * hvd.rank()]}
    everyone = functions.allgather_object(mine)
    assert [entry["tensor"].tolist() for entry in everyone] == [[r, r + 1, r + 2] for r in range(hvd.size())]
    root = functions.broadcast_object(mine, root_rank=1)
    assert root["tensor"].tolist() == [1, 2, 3]
    assert root["nested"][0].dtype == torch.bfloat16
    assert functions.broadcast_object({"rate": 0.1} if hvd.rank() == 0 else None, 0) == {"rate": 0.1}
    assert functions.allgather_object(hvd.rank() or None) == [None, *range(1, hvd.size())]
    return root["nested"][0].tolist()


@on_torch_ranks("shm2")
def test_compression():
    tensor = torch.tensor([1.0, 1 / 3, 70000.0], dtype=torch.float64) * (hvd.rank() + 1)
    halves = {hvd.Compression.none: None, hvd.Compression.fp16: torch.float16, hvd.Compression.bf16: torch.bfloat16}
    for compression, half in halves.items():
        small, context = compression.compress(tensor)
        assert small.dtype == (half or tensor.dtype)
        assert compression.decompress(small, context).dtype == tensor.dtype
        whole, context = compression.compress(torch.tensor([1, 2]))
        assert whole.dtype == torch.int64
        assert compression.decompress(whole, context).dtype == torch.int64
    summed = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.bf16)
    torch.testing.assert_close(summed, tensor / (hvd.rank() + 1) * 3, rtol=0.02, atol=0)
    assert summed.dtype == torch.float64

    class Halved(hvd.Compressor):
        @staticmethod
        def compress(tensor):
            return tensor / 2, 2

        @staticmethod
        def decompress(tensor, ctx):
            return tensor * ctx

    ours = hvd.allreduce(torch.tensor([3.0]), op=hvd.Sum, compression=Halved)
    assert ours.tolist() == [6.0]
    with pytest.raises(NotImplementedError):
        hvd.Compressor.compress(tensor)
