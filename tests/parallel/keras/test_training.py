# SPDX-License-Identifier: Apache-2.0
"""Training with model.fit: K workers get the weights of one worker on all data, with every option."""

import warnings

import numpy as np
import pytest
from harness.keras_worlds import ALL, KERAS_2, ON_TENSORFLOW
from harness.worlds import on_all_ranks

START_S = 200  # seconds; the first test of a world imports its frameworks on all ranks at once


@pytest.mark.checked_numbers("training with model.fit", against="a single process")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_k_workers_equal_one():
    from harness import keras_door as door

    adam = door.keras.optimizers.Adam
    alone = door.trained_alone(adam(0.05))
    modes = [door.COMPILED, {"run_eagerly": True}]
    # Keras 2 and the torch backend do not compile by default.
    if door.IS_KERAS3 and door.keras.backend.backend() != "torch":
        modes.append({"jit_compile": False})
    for mode in modes:
        together = door.trained_together(door.hvd.DistributedOptimizer(adam(0.05)), **mode)
        door.check_same(together, alone)
        door.same_everywhere(together)


@pytest.mark.checked_numbers("gradient accumulation", against="a single process")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_several_backward_passes_for_a_step():
    from harness import keras_door as door

    sgd = door.keras.optimizers.SGD
    alone = door.trained_alone(sgd(0.05))
    steps = door.ROWS // door.BATCH
    for options, rate, mode in (({"average_aggregated_gradients": True}, 0.05, door.COMPILED), ({}, 0.025, {})):
        optimizer = _with_passes(door.hvd, sgd(rate), 2, **options)
        door.check_same(door.trained_together(optimizer, passes=2, **mode), alone)
        assert int(np.asarray(optimizer.iterations)) == 2 * steps
    eager = _with_passes(door.hvd, sgd(0.05), 2, average_aggregated_gradients=True)
    door.check_same(door.trained_together(eager, passes=2, run_eagerly=True), alone)


def _with_passes(hvd, optimizer, passes, **options):
    return hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes, **options)


@pytest.mark.skipif(not KERAS_2, reason="Keras 3 has no compute_gradients")
@on_all_ranks(*KERAS_2, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_computed_gradients_are_reduced_and_applied_as_they_are():
    import tensorflow as tf
    from harness import keras_door as door

    hvd, keras = door.hvd, door.keras
    scaled = keras.mixed_precision.LossScaleOptimizer
    mine, mean = float(hvd.rank() + 1), (hvd.size() + 1) / 2

    def step(optimizer, variable, compute):
        with tf.GradientTape() as tape:
            loss = variable * mine
        return getattr(optimizer, compute)(loss, [variable], tape=tape)

    for make, names in (
        (keras.optimizers.SGD, ["compute_gradients", "_compute_gradients"]),
        (keras.optimizers.legacy.SGD, ["compute_gradients", "_compute_gradients"]),
    ):
        for name in names:
            variable, optimizer = tf.Variable(0.0), hvd.DistributedOptimizer(make(1.0), op=hvd.Sum)
            for _ in range(2):  # twice, because a gradient that was reduced again would be a larger sum
                [(gradient, its)] = step(optimizer, variable, name)
                assert its is variable
                assert float(gradient) == mean * hvd.size()
                optimizer.apply_gradients([(gradient / 2, variable)])
            assert float(variable) == -mean * hvd.size()
            # A gradient that was not computed by the optimizer is reduced.
            optimizer.apply_gradients([(tf.constant(mine), variable)])
            assert float(variable) == -2 * mean * hvd.size()
        legacy = make is keras.optimizers.legacy.SGD
        optimizer, variable = scaled(hvd.DistributedOptimizer(make(1.0), op=hvd.Sum)), tf.Variable(0.0)
        pairs = step(optimizer, variable, "_compute_gradients" if legacy else "compute_gradients")
        assert float(pairs[0][0]) == mean * hvd.size()
        optimizer.apply_gradients(pairs)
        assert float(variable) == -mean * hvd.size()

        optimizer, variable = _with_passes(hvd, make(1.0), 2), tf.Variable(0.0)
        helper, run = optimizer._agg_helper, tf.function(lambda: step(optimizer, variable, "compute_gradients"))  # noqa: B023
        assert int(helper.counter) == 0
        step(optimizer, variable, "compute_gradients")
        assert (int(helper.counter), float(variable)) == (1, 0.0)
        # This call applies nothing, because the accumulation is not complete.
        optimizer.apply_gradients([(tf.constant(mine), variable)])
        assert (float(variable), int(optimizer.iterations)) == (0.0, 1)
        pairs = run()
        assert (int(helper.counter), float(pairs[0][0])) == (0, 2 * mean)
        optimizer.apply_gradients([(pairs[0][0], variable)])
        assert float(variable) == -2 * mean


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_groups_operations_and_factors():
    from harness import keras_door as door

    hvd, sgd = door.hvd, door.keras.optimizers.SGD
    alone = door.trained_alone(sgd(0.05))
    door.check_same(door.trained_together(hvd.DistributedOptimizer(sgd(0.05), groups=2)), alone)
    predivided = hvd.DistributedOptimizer(sgd(0.05), gradient_predivide_factor=2.0)
    door.check_same(door.trained_together(predivided), alone)
    door.check_same(door.trained_together(hvd.DistributedOptimizer(sgd(0.05 / hvd.size()), op=hvd.Sum)), alone)
    halves = hvd.DistributedOptimizer(sgd(0.05), compression=hvd.Compression.fp16)
    door.check_same(door.trained_together(halves), alone, rtol=0.05, atol=0.01)

    network = door.model()
    first, second, *_ = network.trainable_weights
    lists = hvd.DistributedOptimizer(sgd(0.05), groups=[[second, first]])
    x, y = door.data()
    door.fit(network, lists, door.share(x), door.share(y), door.BATCH // hvd.size())
    door.check_same(door.weights(network), alone)


# The gradients that each rank leaves out, of two variables of one shape, and the text of the error.
MISSING = {
    "one on one rank": (([], ["b"]), "None for b .number 2."),
    "another on each rank": ((["a"], ["b"]), "None for a .number 1.*None for b .number 2."),
    "all on one rank": (([], ["a", "b"]), "None for a .number 1., b .number 2."),
}


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
@pytest.mark.parametrize("case", MISSING)
def test_gradients_that_are_none_on_one_rank_are_an_error_on_all(case):
    """The error comes in the first step, and again after a step in which all ranks had all gradients."""
    from harness import keras_door as door

    missing, message = MISSING[case]
    variables = [door.variable(np.ones(2), name) for name in "ab"]
    ones = {name: door.gradient(np.ones(2)) for name in "ab"}
    for options in ({}, {"compression": door.hvd.Compression.fp16}):
        optimizer = door.hvd.DistributedOptimizer(door.keras.optimizers.SGD(1.0), **options)
        present = {name: one for name, one in ones.items() if name not in missing[door.hvd.rank()]}
        for _ in range(2):
            with pytest.raises(door.MISMATCH, match=message if not options else "Mismatched"):
                optimizer.apply_gradients(list(zip(map(present.get, "ab"), variables, strict=True)))
            optimizer.apply_gradients(list(zip(ones.values(), variables, strict=True)))
    door.check_same([np.asarray(one) for one in variables], [np.full(2, -3.0)] * 2)


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_gradients_that_are_none_on_all_ranks_are_left_out():
    from harness import keras_door as door

    variables = [door.variable(np.zeros(2), name) for name in "ab"]
    optimizer = door.hvd.DistributedOptimizer(door.keras.optimizers.SGD(1.0))
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns that a gradient is missing
            mine = door.gradient(np.full(2, 2.0 * door.hvd.rank()))
            optimizer.apply_gradients(list(zip([None, mine], variables, strict=True)))
    door.check_same([np.asarray(one) for one in variables], [np.zeros(2), np.full(2, -2.0)])


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_local_variables_may_differ_between_ranks():
    """Local variables may differ in shape, and in having a gradient."""
    from harness import keras_door as door

    me = door.hvd.rank()
    shared, own, unused = (door.variable(np.zeros(size), name) for name, size in (("a", 2), ("b", 2 + me), ("c", 2)))
    optimizer = door.hvd.DistributedOptimizer(door.keras.optimizers.SGD(1.0), scale_local_gradients=False)
    for variable in (own, unused):
        optimizer.register_local_var(variable)
    gradients = [door.gradient(np.full(size, me + 1.0)) for size in (2, 2 + me)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns that a gradient is missing
        gradients.append(None if me else door.gradient(np.ones(2)))
        optimizer.apply_gradients(list(zip(gradients, (shared, own, unused), strict=True)))
    found = [np.asarray(one) for one in (shared, own, unused)]
    door.check_same(found, [np.full(2, -1.5), np.full(2 + me, -me - 1.0), np.full(2, me - 1.0)])


@on_all_ranks(*ALL)
def test_what_is_refused():
    from harness import keras_door as door

    hvd, sgd = door.hvd, door.keras.optimizers.SGD
    with pytest.raises(ValueError, match="op=Max"):
        hvd.DistributedOptimizer(sgd(0.1), op=4)
    with pytest.raises(ValueError, match="only with op=Average"):
        hvd.DistributedOptimizer(sgd(0.1), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="at least 1"):
        hvd.DistributedOptimizer(sgd(0.1), backward_passes_per_step=0)
    with pytest.raises(ValueError, match="groups"):
        hvd.DistributedOptimizer(sgd(0.1), groups="all")
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd(0.1)))
    with pytest.raises(ValueError, match="needs a Keras optimizer"):
        hvd.DistributedOptimizer("sgd")
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedOptimizer(sgd(0.1), num_groups=1)


@pytest.mark.checked_numbers("gradients of local variables, and of a process set", against="a single process")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_local_variables_and_process_sets():
    from harness import keras_door as door

    hvd, sgd, me = door.hvd, door.keras.optimizers.SGD, door.hvd.rank()
    x, y = door.data(8)
    mine = x[me * 4 : me * 4 + 4], y[me * 4 : me * 4 + 4]

    def step(optimizer, network, xs=mine[0], ys=mine[1], local=()):
        for variable in local:
            optimizer.register_local_var(variable)
        before = door.weights(network)
        door.fit(network, optimizer, xs, ys, len(xs))
        return [after - old for after, old in zip(door.weights(network), before, strict=True)]

    own = step(sgd(1.0), door.model())
    average = step(sgd(1.0), door.model(), x, y)
    network = door.model()
    changes = step(hvd.DistributedOptimizer(sgd(1.0)), network, local=network.layers[-1].trainable_weights)
    door.check_same(changes, [*average[:2], *(one / hvd.size() for one in own[2:])])
    network = door.model()
    unscaled = hvd.DistributedOptimizer(sgd(1.0), scale_local_gradients=False)
    door.check_same(step(unscaled, network, local=network.trainable_weights), own)
    if hasattr(hvd, "PartialDistributedOptimizer"):
        network = door.model()
        partial = hvd.PartialDistributedOptimizer(sgd(1.0), local_layers=network.layers[-1])
        door.check_same(step(partial, network), [*average[:2], *(one / hvd.size() for one in own[2:])])

    single = hvd.add_process_set([1])
    door.check_same(step(hvd.DistributedOptimizer(sgd(1.0), process_set=single), door.model()), own)
    assert hvd.remove_process_set(single)


@pytest.mark.checked_numbers("training with sparse gradients", against="a single process")
@on_all_ranks(*ON_TENSORFLOW, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_sparse_gradients():
    from harness import keras_door as door

    words = np.random.default_rng(5).integers(0, 9, (16, 3))
    targets = words.sum(axis=1, keepdims=True).astype("float32")

    def network():
        start = door.keras.initializers.RandomNormal(seed=1)
        layers = [door.keras.layers.Embedding(9, 2, embeddings_initializer=start), door.keras.layers.Flatten()]
        return door.keras.Sequential(
            [door.keras.layers.Input((3,)), *layers, door.keras.layers.Dense(1, kernel_initializer=start)]
        )

    alone = network()
    door.fit(alone, door.keras.optimizers.SGD(0.05), words, targets, 8)
    for options, mode in (
        ({}, door.COMPILED),
        ({"sparse_as_dense": True}, {}),
        ({"gradient_predivide_factor": 2.0}, {}),
    ):
        together = network()
        optimizer = door.hvd.DistributedOptimizer(door.keras.optimizers.SGD(0.05), **options)
        door.fit(together, optimizer, door.share(words), door.share(targets), 8 // door.hvd.size(), **mode)
        door.check_same(door.weights(together), door.weights(alone))


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_loss_scale_is_agreed_upon():
    """A rank whose gradients overflow makes all ranks skip the step, in both orders of wrapping."""
    from harness import keras_door as door

    hvd, keras = door.hvd, door.keras
    scaled = getattr(keras.optimizers, "LossScaleOptimizer", None) or keras.mixed_precision.LossScaleOptimizer
    orders = (
        lambda options: scaled(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), **options)),
        lambda options: hvd.DistributedOptimizer(scaled(keras.optimizers.SGD(0.05)), **options),
    )
    alone = door.trained_alone(keras.optimizers.SGD(0.05))
    x, y = door.data(16)
    for order in orders:
        door.check_same(door.trained_together(order({})), alone)
        network, optimizer = door.model(), order({})
        x_bad = x[:4].copy()
        x_bad[0, 0] = np.inf if hvd.rank() == 1 else x_bad[0, 0]
        before = door.weights(network)
        door.fit(network, optimizer, x_bad, y[:4], 4)
        door.check_same(door.weights(network), before)
        network.fit(x[4:8], y[4:8], 4, shuffle=False, verbose=0)
        door.same_everywhere(door.weights(network))
        assert any(abs(new - old).max() > 0 for new, old in zip(door.weights(network), before, strict=True))
    passes = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    door.check_same(door.trained_together(orders[0](passes), passes=2, **door.COMPILED), alone)


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_state_schedules_and_class():
    """The distributed optimizer continues from the given one's state, and is an instance of its class."""
    from harness import keras_door as door

    keras, hvd = door.keras, door.hvd

    class Halving(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.5)(step)

    class Halved(keras.optimizers.SGD):
        pass

    alone = door.trained_alone(keras.optimizers.SGD(Halving()))
    scheduled = hvd.DistributedOptimizer(Halved(Halving()))
    door.check_same(door.trained_together(scheduled), alone)
    assert isinstance(scheduled, Halved)
    assert type(scheduled).__name__ == "Halved"
    assert scheduled.__class__ is Halved

    network = door.model()
    x, y = door.data()
    door.fit(network, keras.optimizers.Adam(0.05), x, y, door.BATCH, epochs=2)
    if door.IS_KERAS3:
        optimizer = hvd.DistributedOptimizer(network.optimizer)
        pairs = zip(optimizer.variables, network.optimizer.variables, strict=True)
        assert all(np.array_equal(np.asarray(new), np.asarray(old)) for new, old in pairs)
