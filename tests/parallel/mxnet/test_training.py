# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of parameters reach all ranks, and K workers on K shards learn what one learns on the whole batch."""

import copy
import pickle

import numpy as np
import pytest
from harness.mxnet_arrays import array_of, mx, on_mxnet_ranks
from harness.sets import process_sets

import horovod.mxnet as hvd
from horovod.common.compression_methods import Int8

TWO_AND_FOUR = ("shm2", "shm4")
ROWS = 8  # rows of each rank
STEPS = 4


def make_net(seed):
    mx.random.seed(seed)
    net = mx.gluon.nn.HybridSequential()
    net.add(
        mx.gluon.nn.Conv2D(4, 3, in_channels=1), mx.gluon.nn.Activation("tanh"), mx.gluon.nn.Dense(10, in_units=144)
    )
    net.initialize(mx.init.Xavier())
    return net


def batches():
    """Yield the whole batch of each step, which is equal on all ranks."""
    random = np.random.default_rng(11)
    rows = ROWS * hvd.size()
    for _ in range(STEPS):
        images = random.standard_normal((rows, 1, 8, 8)).astype(np.float32)
        yield images, random.integers(0, 10, rows).astype(np.float32)


def shard(values):
    return array_of(values[hvd.rank() * ROWS : (hvd.rank() + 1) * ROWS])


def backward(net, images, labels):
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    with mx.autograd.record():
        loss = loss_of(net(images), labels)
    loss.backward()


def weights(net):
    return np.concatenate([parameter.data().asnumpy().ravel() for parameter in net.collect_params().values()])


def train_alone(optimizer, options):
    net = make_net(7)
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, dict(options), kvstore=None)
    for images, labels in batches():
        backward(net, array_of(images), array_of(labels))
        trainer.step(len(labels))
    return weights(net)


SGD = ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3})
CASES = {
    "sgd": (*SGD, {}, 2e-6),
    "adam": ("adam", {"learning_rate": 1e-2}, {}, 2e-5),
    "predivide": (*SGD, {"gradient_predivide_factor": 2.0}, 2e-6),
    "groups": (*SGD, {"num_groups": 2}, 2e-6),
    "more groups than parameters": (*SGD, {"num_groups": 9, "prefix": "net."}, 2e-6),
    "fp16": (*SGD, {"compression": hvd.Compression.fp16}, 2e-3),
}


@pytest.mark.checked_numbers("training with DistributedTrainer", against="a single process")
@on_mxnet_ranks(*TWO_AND_FOUR)
@pytest.mark.parametrize("case", CASES)
def test_trainer_equals_one_worker_on_the_whole_batch(case):
    optimizer, options, arguments, tolerance = CASES[case]
    net = make_net(hvd.rank())
    if hvd.rank() == 0:
        net = make_net(7)
    hvd.broadcast_parameters(_by_place(net))
    net.hybridize()
    trainer = hvd.DistributedTrainer(net.collect_params(), optimizer, dict(options), **arguments)
    assert trainer._kvstore is None
    for images, labels in batches():
        backward(net, shard(images), shard(labels))
        trainer.step(ROWS)
    np.testing.assert_allclose(weights(net), train_alone(optimizer, options), rtol=0, atol=tolerance)
    return weights(net).tobytes()


def _by_place(net):
    """Return parameters under names that do not depend on how many nets the process has made."""
    return {str(index): parameter for index, parameter in enumerate(net.collect_params().values())}


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_gradients_can_be_looked_at_before_the_update():
    net = make_net(7)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    assert trainer._scale == pytest.approx(1 / hvd.size())
    images, labels = next(batches())
    backward(net, array_of(images), array_of(labels))
    alone = [parameter.grad().asnumpy() for parameter in net.collect_params().values()]
    backward(net, shard(images), shard(labels))
    trainer.allreduce_grads()
    for parameter, expected in zip(net.collect_params().values(), alone, strict=True):
        np.testing.assert_allclose(parameter.grad().asnumpy(), expected, rtol=0, atol=1e-5)
    trainer.update(ROWS)


@pytest.mark.checked_numbers("training with DistributedOptimizer", against="a single process")
@on_mxnet_ranks(*TWO_AND_FOUR)
@pytest.mark.parametrize("num_groups", [0, 1])
def test_optimizer_equals_one_worker_on_the_whole_batch(num_groups):
    name, options = SGD
    net = make_net(7)
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create(name, **options), num_groups=num_groups)
    assert isinstance(optimizer, mx.optimizer.Optimizer)
    assert optimizer.momentum == options["momentum"]
    optimizer.set_learning_rate(options["learning_rate"])
    optimizer._optimizer.rescale_grad = optimizer.rescale_grad / ROWS
    update = mx.optimizer.get_updater(optimizer)
    for images, labels in batches():
        backward(net, shard(images), shard(labels))
        parameters = list(net.collect_params().values())
        if num_groups:
            update(list(range(len(parameters))), [one.grad() for one in parameters], [one.data() for one in parameters])
        else:
            for index, parameter in enumerate(parameters):
                update(index, parameter.grad(), parameter.data())
    np.testing.assert_allclose(weights(net), train_alone(name, options), rtol=0, atol=2e-6)
    return weights(net).tobytes()


@on_mxnet_ranks("shm2")
def test_module_learns_the_same_on_all_ranks():
    data = mx.sym.Variable("data")
    output = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(data, num_hidden=1), name="out")
    inputs = np.random.default_rng(hvd.rank()).standard_normal((32, 3)).astype(np.float32)
    truth = inputs @ np.array([[1.0], [-2.0], [0.5]], np.float32) + 3
    batches_ = mx.io.NDArrayIter(inputs, truth, 8, label_name="out_label")
    module = mx.mod.Module(output, label_names=["out_label"])
    module.bind(batches_.provide_data, batches_.provide_label)
    module.init_params(mx.init.Uniform(0.1 + hvd.rank()))
    values, states = module.get_params()
    hvd.broadcast_parameters(values)
    module.set_params(values, states)
    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.2, rescale_grad=1 / 8))
    module.fit(batches_, num_epoch=25, optimizer=optimizer, kvstore=None, eval_metric="mse")
    values = {name: value.asnumpy() for name, value in sorted(module.get_params()[0].items())}
    bias, weight = values.values()
    np.testing.assert_allclose(bias, [3], atol=0.05)
    np.testing.assert_allclose(weight, [[1, -2, 0.5]], atol=0.05)
    return bias.tobytes() + weight.tobytes()


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_parameters_without_a_shape_follow_with_the_first_batch():
    root = hvd.size() - 1
    mx.random.seed(hvd.rank())
    net = mx.gluon.nn.HybridSequential(prefix="deferred_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(4, in_units=3), mx.gluon.nn.Dense(2))
    net.initialize(mx.init.Uniform(1))
    hvd.broadcast_parameters(net.collect_params(), root_rank=root, prefix="model.")
    net(mx.nd.ones((1, 3)))
    everyone = hvd.allgather_object(weights(net))
    for other in everyone:
        np.testing.assert_array_equal(other, everyone[root])
    # The broadcast happens once: initialising the parameters again concerns this rank only.
    net.initialize(mx.init.Constant(hvd.rank()), force_reinit=True)
    net(mx.nd.ones((1, 3)))
    assert net[1].weight.data().asnumpy()[0, 0] == hvd.rank()


@on_mxnet_ranks("shm2")
def test_what_cannot_be_broadcast_is_refused():
    with pytest.raises(ValueError, match="takes a dict"):
        hvd.broadcast_parameters([mx.nd.ones(2)])
    with pytest.raises(ValueError, match="initialize"):
        hvd.broadcast_parameters(mx.gluon.nn.Dense(2, in_units=2).collect_params())
    with pytest.raises(ValueError, match="positive"):
        hvd.DistributedTrainer(make_net(1).collect_params(), "sgd", gradient_predivide_factor=0)
    with pytest.raises(ValueError, match=r"DistributedTrainer of MXNet does not support compression=int8\("):
        hvd.DistributedTrainer(make_net(1).collect_params(), "sgd", compression=Int8())
    net = make_net(1)
    optimizer = mx.optimizer.SGD(learning_rate=1, rescale_grad=0.5)
    with pytest.warns(UserWarning, match="pass it the original optimizer"):
        trainer = hvd.DistributedTrainer(net.collect_params(), hvd.DistributedOptimizer(optimizer))
    assert trainer._optimizer is optimizer
    assert trainer._scale == pytest.approx(0.5 / hvd.size())


@on_mxnet_ranks("shm4")
def test_trainers_of_process_sets():
    """The members train together; each rank that is not a member trains alone."""
    with process_sets([0, 1]) as (first,):
        weight = mx.gluon.Parameter("weight", shape=(2,), init="zeros")
        weight.initialize()
        trainer = hvd.DistributedTrainer([weight], "sgd", {"learning_rate": 1.0}, process_set=first)
        with mx.autograd.record():
            loss = (weight.data() * (hvd.rank() + 1)).sum()
        loss.backward()
        trainer.step(1)
        expected = -1.5 if hvd.rank() < 2 else -(hvd.rank() + 1)
        assert weight.data().asnumpy().tolist() == [expected] * 2
        mx.nd.waitall()


def _weights(value, count=3, name="w", shape=(4,), grad_req="write"):
    parameters = [mx.gluon.Parameter(f"{name}{index}", grad_req, shape) for index in range(count)]
    for parameter in parameters:
        parameter.initialize(mx.init.Constant(value))
    return parameters


def _backward(parameters, factor):
    with mx.autograd.record():
        loss = mx.nd.add_n(*[(one.data() * (factor * (index + 1))).sum() for index, one in enumerate(parameters)])
    loss.backward()


@pytest.mark.checked_numbers("two trainers in one step, with equal names and shapes", against="the exact values")
@on_mxnet_ranks("shm2")
@pytest.mark.parametrize(("num_groups", "passes"), [(0, 1), (2, 1), (0, 2)])
def test_two_trainers_at_once(num_groups, passes):
    """The models also have other shapes, and gradients may add up over several backward passes."""
    kind = {"grad_req": "write" if passes == 1 else "add"}
    models = [
        (_weights(1.0, **kind), 1.0, 1.0),
        (_weights(2.0, **kind), 10.0, 2.0),
        (_weights(3.0, count=2, **kind), 100.0, 3.0),
        (_weights(4.0, shape=(2, 5), **kind), 1000.0, 4.0),
    ]
    order = models if hvd.rank() == 0 else models[::-1]  # the order in which trainers are made does not matter
    trainers = {id(one): hvd.DistributedTrainer(one, "sgd", SGD_1, num_groups=num_groups) for one, _, _ in order}
    steps = 10
    for _ in range(steps):
        for _ in range(passes):
            for parameters, factor, _ in models:
                _backward(parameters, factor * (hvd.rank() + 1))
        for parameters, _, _ in models:
            trainers[id(parameters)].step(1)
            for parameter in parameters:
                parameter.zero_grad()
    for parameters, factor, begin in models:
        for index, parameter in enumerate(parameters):
            expected = begin - steps * passes * factor * (hvd.size() + 1) / 2 * (index + 1)
            np.testing.assert_allclose(parameter.data().asnumpy(), np.full(parameter.shape, expected), rtol=1e-6)


@pytest.mark.checked_numbers("two trainers of process sets, and in a new world", against="the exact values")
@on_mxnet_ranks("shm4")
def test_two_trainers_of_process_sets_and_in_a_new_world():
    first, second = _weights(1.0), _weights(2.0)

    def train(process_set, trainers=None):
        trainers = trainers or [hvd.DistributedTrainer(one, "sgd", SGD_1, process_set=process_set) for one in models]
        for parameters, factor in zip(models, factors, strict=True):
            _backward(parameters, factor * (hvd.rank() + 1))
        _step_all(trainers)
        mx.nd.waitall()
        return trainers

    models, factors = (first, second), (1.0, 10.0)
    with process_sets([0, 2], [1, 3]) as sets:
        train(sets[hvd.rank() % 2])
    trainers = train(hvd.global_process_set)
    hvd.shutdown()
    hvd.init()
    train(hvd.global_process_set, trainers if hvd.rank() == 0 else None)  # rank 1 gets new trainers
    for parameters, factor, begin in zip(models, factors, (1.0, 2.0), strict=True):
        for index, parameter in enumerate(parameters):
            steps = 2 + hvd.rank() % 2 + 2 * 2.5  # the mean of a process set, and twice the mean of all ranks
            np.testing.assert_allclose(parameter.data().asnumpy(), np.full(4, begin - steps * factor * (index + 1)))


SGD_1 = {"learning_rate": 1.0}


def _step_all(trainers):
    for trainer in trainers:
        trainer.step(1)


@pytest.mark.checked_numbers("two optimizers in one step, with equal indices and shapes", against="the exact values")
@on_mxnet_ranks("shm2")
def test_two_optimizers_at_once():
    updates = [
        mx.optimizer.get_updater(hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0))) for _ in range(2)
    ]
    values = [[mx.nd.zeros(100) for _ in range(5)] for _ in updates]
    for _ in range(3):
        for index in range(5):
            for factor, update, mine in zip((1.0, 10.0), updates, values, strict=True):
                update(index, mx.nd.ones(100) * (factor * (hvd.rank() + 1)), mine[index])
        mx.nd.waitall()
    for factor, mine in zip((1.0, 10.0), values, strict=True):
        for value in mine:
            np.testing.assert_allclose(value.asnumpy(), np.full(100, -3 * factor * (hvd.size() + 1) / 2))


@on_mxnet_ranks("shm2")
def test_ranks_whose_trainers_differ():
    parameters = _weights(1.0)
    if hvd.rank() == 1:
        parameters[1].grad_req = "null"
    trainer = hvd.DistributedTrainer(parameters, "sgd", SGD_1)
    _backward(parameters, 1.0)
    with pytest.raises(hvd.HorovodMismatchError, match="gradients of [23] variables, w .number 0. to w .number 2."):
        trainer.step(1)
    parameters[1].grad_req = "write"
    _backward(parameters, 1.0)
    trainer.step(1)
    np.testing.assert_allclose(parameters[1].data().asnumpy(), np.full(4, -1.0))
    # Networks with different names, and equal ones whose values differ, in another order on rank 1.
    for models in ((_weights(1.0, name="x"), _weights(2.0, name="y")), (_weights(1.0), _weights(2.0))):
        pair = [hvd.DistributedTrainer(one, "sgd", SGD_1) for one in models]
        for one in models:
            _backward(one, 1.0)
        if hvd.rank() == 1:
            pair.reverse()
        with pytest.raises(hvd.HorovodMismatchError, match="in the same order"):
            _step_all(pair)
    mx.nd.waitall()


@on_mxnet_ranks("shm2")
def test_copies_of_a_trainer_reduce_and_those_of_an_optimizer_are_refused():
    parameter = mx.gluon.Parameter("weight", shape=(2,), init="zeros")
    parameter.initialize()
    trainer = copy.copy(hvd.DistributedTrainer({"weight": parameter}, "sgd", {"learning_rate": 1.0}))
    with mx.autograd.record():
        loss = (parameter.data() * 2.0 * hvd.rank()).sum()
    loss.backward()
    trainer.step(1)
    assert parameter.data().asnumpy().tolist() == [-1.0, -1.0]
    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0))
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"wrap the copy with hvd.DistributedOptimizer"):
            way(optimizer)
