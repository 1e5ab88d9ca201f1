# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm on parts of a batch equals BatchNorm of one process on the whole batch, gradients included."""

import copy
import pickle
import warnings

import pytest
import torch
from harness.sets import process_sets
from harness.torch_training import on_torch_ranks
from harness.waiting import DEADLOCK2
from harness.worlds import SHM3

import horovod.torch as hvd
from horovod.torch.sync_batch_norm import SyncBatchNorm

TWO_AND_FOUR = ("shm2", "shm4")
PLAIN = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}
# Largest error relative to float64 arithmetic, in units of the result's largest value.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def parts(shape, dtype, rows, seed=0):
    """Return every rank's part of one batch. Values are not centred, so that rounding shows."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(sum(rows), *shape[1:], generator=generator, dtype=torch.float64) * 3 + 5
    return [part.to(dtype) for part in whole.split(rows)]


def close(result, expected, dtype, made_of=None):
    """Check the dtype of a result and its distance from the expected values, with the tolerance of `made_of`."""
    assert result.dtype == dtype
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    tolerance = TOLERANCE[made_of or dtype] * scale
    torch.testing.assert_close(result.double(), expected.double(), rtol=0, atol=tolerance)


def trained(module, inputs, weights):
    """Return output, input gradient and parameter gradients of a step. The loss is a weighted sum of cubes."""
    inputs = inputs.clone().requires_grad_()
    module.zero_grad()
    output = module(inputs)
    (output.double() ** 3 * weights).sum().backward()
    return output.detach(), inputs.grad, [parameter.grad for parameter in module.parameters()]


def compare(module, reference, inputs):
    """Compare a step of `module` on this rank's part with a float64 step of `reference` on the whole batch."""
    rank, rows, dtype = hvd.rank(), [len(part) for part in inputs], inputs[0].dtype
    weights = parts(inputs[0].shape, torch.float64, rows, seed=100)
    output, gradient, own = trained(module, inputs[rank], weights[rank])
    whole, expected, total = trained(reference, torch.cat(inputs).double(), torch.cat(weights))
    close(output, whole.split(rows)[rank], dtype)
    close(gradient, expected.split(rows)[rank], dtype)
    for part, sum_of_parts in zip(own, total, strict=True):
        close(hvd.allreduce(part, op=hvd.Sum), sum_of_parts, part.dtype, made_of=dtype)
    for buffer, expected_buffer in zip(module.buffers(), reference.buffers(), strict=True):
        if buffer.is_floating_point():
            close(buffer, expected_buffer, buffer.dtype)
        else:
            assert buffer == expected_buffer


def pair(dims, channels, **options):
    """Return a SyncBatchNorm and a float64 BatchNorm with equal parameters."""
    torch.manual_seed(3)
    reference = PLAIN[dims](channels, **options).double()
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter)
    layer = SyncBatchNorm(channels, **options).double()
    layer.load_state_dict(reference.state_dict())
    return layer, reference


@pytest.mark.checked_numbers("SyncBatchNorm: outputs, gradients and statistics", against="a single process")
@on_torch_ranks(*TWO_AND_FOUR)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", [(4, 3), (3, 4, 5), (2, 3, 4, 5), (2, 3, 2, 3, 2)], ids=len)
def test_equals_one_process(shape, dtype):
    layer, reference = pair(len(shape), shape[1])
    layer.float() if dtype in (torch.float16, torch.bfloat16) else layer.to(dtype)
    rows = [shape[0] + rank for rank in range(hvd.size())]
    inputs = parts(shape, dtype, rows)
    for _ in range(2):
        compare(layer, reference, inputs)
    assert layer.num_batches_tracked.item() == 2
    return layer.running_mean.tolist(), layer.running_var.tolist()


@on_torch_ranks(*TWO_AND_FOUR)
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": None},
        {"affine": False},
        {"track_running_stats": False},
        {"affine": False, "momentum": 0.5, "eps": 0.1},
    ],
    ids=str,
)
def test_options(options):
    layer, reference = pair(4, 3, **options)
    rows = [1 + rank for rank in range(hvd.size())]
    for seed in range(3):
        compare(layer, reference, parts((0, 3, 2, 2), torch.float64, rows, seed))
    layer.eval()
    reference.eval()
    mine = parts((0, 3, 2, 2), torch.float64, rows)[hvd.rank()]
    close(layer(mine).detach(), reference(mine).detach(), torch.float64)


@on_torch_ranks(*TWO_AND_FOUR)
def test_empty_batches():
    layer, reference = pair(4, 3)
    for empty in range(hvd.size()):
        rows = [0 if rank == empty else 3 for rank in range(hvd.size())]
        compare(layer, reference, parts((0, 3, 2, 2), torch.float64, rows, empty))
    before = copy.deepcopy(layer.state_dict())
    assert layer(torch.empty(0, 3, 2, 2, dtype=torch.float64)).shape == (0, 3, 2, 2)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


@on_torch_ranks("shm2")
def test_too_few_values():
    layer = SyncBatchNorm(2)
    mine = torch.ones(1 - hvd.rank(), 2)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer(mine)
    with pytest.raises(ValueError, match=r"\(N, 2, ...\)"):
        layer(torch.ones(2, 3))
    layer(torch.ones(1, 2))  # two rows over all ranks, so it is allowed


@on_torch_ranks(*TWO_AND_FOUR)
def test_several_layers_and_one_used_twice():
    torch.manual_seed(5)
    # No bias: before a normalisation its gradient is zero except for rounding.
    first, second = torch.nn.Conv2d(3, 3, 1, bias=False), torch.nn.Conv2d(3, 3, 1, bias=False)
    shared = torch.nn.BatchNorm2d(3)
    reference = torch.nn.Sequential(first, shared, torch.nn.Sigmoid(), second, shared, torch.nn.BatchNorm2d(3)).double()
    layers = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference))
    assert [type(layers[index]) for index in (1, 4, 5)] == [SyncBatchNorm] * 3
    assert layers[1] is layers[4]
    assert type(SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(3))) is SyncBatchNorm
    rows = [2 + rank for rank in range(hvd.size())]
    for seed in range(2):
        compare(layers, reference, parts((0, 3, 3, 3), torch.float64, rows, seed))


@on_torch_ranks("shm2")
def test_alone_it_is_plain():
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    torch.manual_seed(hvd.rank())
    layer = SyncBatchNorm(3, process_set=sets[hvd.rank()])
    plain = torch.nn.BatchNorm1d(3)
    inputs = torch.randn(5, 3)
    torch.testing.assert_close(layer(inputs), plain(inputs), rtol=0, atol=0)
    torch.testing.assert_close(layer.state_dict(), plain.state_dict(), rtol=0, atol=0)
    for process_set in sets:
        hvd.remove_process_set(process_set)


@on_torch_ranks("shm2")
def test_copies_and_frozen_inputs():
    layer = SyncBatchNorm(3, affine=True)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(layer)))
    assert twin.process_set is hvd.global_process_set
    # The inputs need no gradient, so only the parameters' gradients are computed, without communication.
    inputs = torch.randn(4, 3)
    layer(inputs).square().sum().backward()
    twin(inputs).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad)


@on_torch_ranks("shm2")
def test_under_compile():
    torch.manual_seed(1)
    eager = torch.nn.Sequential(torch.nn.Linear(2, 3), SyncBatchNorm(3), torch.nn.ReLU(), SyncBatchNorm(3))
    model = copy.deepcopy(eager)
    compiled = torch.compile(model, backend="eager")
    for step in range(2):
        torch.manual_seed(10 * step + hvd.rank())
        inputs = torch.randn(4, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler warns about its own code
            results = [module(inputs) for module in (eager, compiled)]
        torch.testing.assert_close(*results)
        for result in results:
            result.pow(3).sum().backward()
    for expected, parameter in zip(eager.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
    torch.testing.assert_close(model.state_dict(), eager.state_dict())


def make_models(count):
    torch.manual_seed(9)
    return [
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        for _ in range(count)
    ]


def check_models_in_one_backward(sets):
    """Train one model in each of these process sets. Each rank trains the models of its sets."""
    mine = [
        (hvd.SyncBatchNorm.convert_sync_batchnorm(model, it).double(), reference.double(), it)
        for model, reference, it in zip(make_models(len(sets)), make_models(len(sets)), sets, strict=True)
        if it.included()
    ]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), process_set=it)
        for model, _, it in mine
    ]
    plain = [torch.optim.SGD(reference.parameters(), 0.1) for _, reference, _ in mine]
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        batches = torch.randn(4 * hvd.size(), 3, generator=generator, dtype=torch.float64).split(4)
        for optimizer in (*optimizers, *plain):
            optimizer.zero_grad()
        sum(model(batches[hvd.rank()]).square().mean() for model, _, _ in mine).backward()
        for _, reference, it in mine:
            reference(torch.cat([batches[rank] for rank in it.ranks])).square().mean().backward()
        for optimizer in (*optimizers, *plain):
            optimizer.step()
    for model, reference, _ in mine:
        for name, value in reference.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=1e-12)


@pytest.mark.checked_numbers("weights and statistics of two models with SyncBatchNorm", against="a single process")
@on_torch_ranks("shm2")
def test_two_models_in_one_backward_are_those_of_one_process():
    check_models_in_one_backward([hvd.global_process_set] * 2)


@pytest.mark.checked_numbers("three models with SyncBatchNorm in overlapping process sets", against="a single process")
@on_torch_ranks(SHM3)
def test_models_of_process_sets_that_overlap():
    with process_sets([0, 1], [1, 2]) as (first, second):
        check_models_in_one_backward([first, second, second])


@on_torch_ranks(DEADLOCK2)
def test_a_model_that_one_rank_leaves_out_is_not_mixed_with_the_next():
    layers = [SyncBatchNorm(3) for _ in range(2)]
    inputs = torch.randn(4, 3)
    for layer in layers:
        layer(inputs)
    with pytest.raises(hvd.HorovodMismatchError, match=r"sync_batch_norm.forward.*sync_batch_norm.forward"):
        layers[hvd.rank()](inputs)
    for layer in layers:
        layer(inputs)
