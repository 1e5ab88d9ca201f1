# SPDX-License-Identifier: Apache-2.0
"""Two tapes or optimizers in one program whose variables share names, and ranks whose gradients do not match."""

import copy
import pickle

import numpy as np
import pytest
from harness.sets import process_sets
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks

pytestmark = pytest.mark.timeout(LIMIT)


def networks(tf, shapes, names=("weight", "weight")):
    """Return two variables, such as the weights of a GAN's two models."""
    return [tf.Variable(np.ones(shape), name=name) for shape, name in zip(shapes, names, strict=True)]


def gan_step(tf, wrap, first, second, x, persistent):
    """Return the gradients of two losses of both variables, by nested tapes or by one persistent tape."""

    def losses():
        generated = tf.tanh(tf.reduce_sum(x) * tf.reduce_sum(first))
        return tf.reduce_mean(x) * generated * tf.reduce_sum(second), generated**2 + tf.reduce_sum(second**2 * x[0])

    if persistent:
        with wrap(tf.GradientTape(persistent=True)) as tape:
            one, other = losses()
        return tape.gradient(one, first), tape.gradient(other, second)
    with wrap(tf.GradientTape()) as inner:
        with wrap(tf.GradientTape()) as outer:
            one, other = losses()
        mine = outer.gradient(one, first)
    return mine, inner.gradient(other, second)


@pytest.mark.checked_numbers("two tapes in one step, variables of equal names", against="the mean of single processes")
@on_tensorflow_ranks("shm2")
def test_two_tapes():
    from harness.tensorflow_training import door, modes

    tf, hvd = door()
    data = [np.array([0.1, 0.2, 0.4]) * (rank + 1) for rank in range(hvd.size())]
    for shapes in (((3,), (3,)), ((3,), (2, 1))):
        first, second = networks(tf, shapes)
        for persistent in (False, True):
            alone = [gan_step(tf, lambda tape: tape, first, second, tf.constant(x), persistent) for x in data]
            expected = [np.mean([gradients[place] for gradients in alone], 0) for place in (0, 1)]
            for mode in modes():

                def step(x, first=first, second=second, persistent=persistent):
                    return gan_step(tf, hvd.DistributedGradientTape, first, second, x, persistent)

                run = step if mode == "eager" else tf.function(step, jit_compile=mode == "jit")
                for _ in range(2):
                    for found, wanted in zip(run(tf.constant(data[hvd.rank()])), expected, strict=True):
                        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.checked_numbers("three tapes, dense and sparse, in two worlds", against="the mean")
@on_tensorflow_ranks("shm2")
def test_three_tapes_in_two_worlds():
    from harness.tensorflow_training import door, modes

    tf, hvd = door()
    tables = [tf.Variable(np.zeros((3, 2)), name="weight") for _ in range(3)]

    def gradients():
        """Return the tables' gradients. Those of the first two are slices of one row per rank."""
        found = []
        for number, table in enumerate(tables):
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                value = tf.gather(table, [hvd.rank()]) if number < 2 else table
                loss = tf.reduce_sum(value) * 10.0**number * float(hvd.rank() + 1)
            found.append(tf.convert_to_tensor(tape.gradient(loss, table)))
        return found

    rows = np.outer([0.5, 1.0, 0.0], [1, 1])
    for world in range(2):
        if world:
            hvd.shutdown()
            hvd.init()
        for mode in modes():
            run = gradients if mode == "eager" else tf.function(gradients, jit_compile=mode == "jit")
            for found, expected in zip(run(), (rows, 10 * rows, np.full((3, 2), 150.0)), strict=True):
                np.testing.assert_allclose(found, expected)


@pytest.mark.checked_numbers("tapes with groups in overlapping process sets, equal names", against="the mean")
@on_tensorflow_ranks("shm4")
def test_tapes_of_process_sets_with_groups():
    from harness.tensorflow_training import door, modes

    tf, hvd = door()
    models = [networks(tf, ((3,), (2, 1))) for _ in range(4)]
    with process_sets([0, 1, 2], [1, 2, 3]) as (first, second):
        sets = (first, second, second, hvd.global_process_set)

        def step():
            found = []
            for number, (process_set, variables) in enumerate(zip(sets, models, strict=True)):
                with hvd.DistributedGradientTape(tf.GradientTape(), groups=2, process_set=process_set) as tape:
                    losses = [tf.reduce_sum(variable) * place for place, variable in enumerate(variables, start=1)]
                    loss = tf.add_n(losses) * (10.0**number * (1 + hvd.rank()))
                found.append(tape.gradient(loss, variables))
            return found

        for mode in modes():
            run = step if mode == "eager" else tf.function(step, jit_compile=mode == "jit")
            for number, (process_set, gradients) in enumerate(zip(sets, run(), strict=True)):
                mean = 1 + np.mean(process_set.ranks if process_set.included() else [hvd.rank()])
                for place, gradient in enumerate(gradients, start=1):
                    np.testing.assert_allclose(gradient, np.full(gradient.shape, place * 10.0**number * mean))


@pytest.mark.checked_numbers("two tf.compat.v1 optimizers with variables of equal names", against="a single process")
@pytest.mark.parametrize("options", [{}, {"backward_passes_per_step": 2}], ids=str)
@on_tensorflow_ranks("shm2")
def test_two_optimizers_in_a_session(options):
    """Train two models of equal shapes, and two of different shapes."""
    from harness.tensorflow_training import door

    tf, hvd = door()
    passes = options.get("backward_passes_per_step", 1)

    def train(wrap, values, together, shape):
        with tf.Graph().as_default():
            x = tf.compat.v1.placeholder(tf.float64, [])
            first, second = networks(tf, ((3,), shape))
            make = tf.compat.v1.train.GradientDescentOptimizer
            steps = [
                wrap(make(0.1)).minimize(tf.reduce_sum(first**2) * x, var_list=[first]),
                wrap(make(0.3)).minimize(tf.reduce_sum(second**2) * x * x, var_list=[second]),
            ]
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                for value in values:
                    for fetch in [steps] if together else steps:
                        session.run(fetch, {x: value})
                return session.run([first, second])

    # One gradient is linear in x, the other in x squared: a step takes their mean over ranks and sum over passes.
    inputs = np.array([[0.2, 0.3, 0.1, 0.5], [0.4, 0.1, 0.6, 0.3]])
    x, square = (values.mean(0).reshape(-1, passes).sum(1) for values in (inputs, inputs**2))
    for together, shape in ((False, (3,)), (True, (3,)), (True, (2, 1))):
        first, _ = train(lambda optimizer: optimizer, x, together, shape)
        _, second = train(lambda optimizer: optimizer, np.sqrt(square), together, shape)
        found = train(
            lambda optimizer: hvd.DistributedOptimizer(optimizer, **options), inputs[hvd.rank()], together, shape
        )
        for value, expected in zip(found, [first, second], strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-12)


@pytest.mark.checked_numbers("two models in different order on two ranks", against="the mean of single processes")
@on_tensorflow_ranks("shm2")
def test_another_order_of_models():
    from harness.tensorflow_training import door

    tf, hvd = door()

    def step(first, second):
        def gradient(variable, factor):
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(variable) * (factor * float(hvd.rank() + 1))
            return tape.gradient(loss, variable)

        if hvd.rank() == 0:
            return gradient(first, 1.0), gradient(second, 10.0)
        return tuple(reversed((gradient(second, 10.0), gradient(first, 1.0))))

    for shapes in (((3,), (3,)), ((3,), (2, 1))):
        first, second = networks(tf, shapes, ("generator/weight", "discriminator/weight"))
        for found, factor in zip(tf.function(lambda one=first, two=second: step(one, two))(), (1, 10), strict=True):
            np.testing.assert_allclose(found, np.full(found.shape, 1.5 * factor))  # matched by name
        named = r"gradients of 1 variable, generator/weight.* on rank 0 but .*discriminator/weight"
        with pytest.raises(tf.errors.FailedPreconditionError, match=named):
            step(first, second)
    # Keras numbers layers differently on a rank that has made one more model, but these are matching variables.
    [variable] = networks(tf, [(3,)], [f"sequential_{hvd.rank()}/dense_{hvd.rank() + 4}/kernel"])
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(variable) * float(hvd.rank() + 1)
    np.testing.assert_allclose(tape.gradient(loss, variable), np.full(3, 1.5))


@on_tensorflow_ranks("shm2")
def test_one_model_skipped_on_one_rank():
    from harness.tensorflow_training import door

    tf, hvd = door()
    first, second = networks(tf, ((3,), (2, 1)), ("encoder/weight", "decoder/weight"))

    def gradient(*variables):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([tf.reduce_sum(variable) for variable in variables])
        return tape.gradient(loss, list(variables))

    with pytest.raises(tf.errors.FailedPreconditionError, match="gradients of 2 variables, encoder/weight to decoder"):
        gradient(first, second) if hvd.rank() == 0 else gradient(second)
    np.testing.assert_allclose(gradient(second)[0], np.ones((2, 1)))  # the next call works


@on_tensorflow_ranks("shm2")
def test_none_on_one_rank():
    from harness.tensorflow_training import door, modes

    tf, hvd = door()
    weight, bias, table = (tf.Variable(np.ones(shape), name=f"net/{shape}d") for shape in (3, 2, 4))

    def gradients(uses_bias=True, sources=(weight, bias), slices=False, unconnected="none", **options):
        with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = tf.reduce_sum(weight)
            if hvd.rank() == 0 and uses_bias:
                loss += tf.reduce_sum(tf.gather(table, [1])) if slices else tf.reduce_sum(bias)
        return tape.gradient(loss, list(sources), unconnected_gradients=unconnected)

    cases = (
        ({}, r"None for net/2d \(number 2\), which unconnected_gradients=tf.UnconnectedGradients.ZERO turns"),
        ({"sources": (bias, weight)}, r"None for net/2d \(number 1\)"),
        ({"sources": (bias,)}, "gradients of 1 variable, net/2d; None for net/2d"),
        ({"groups": 2}, "; group [12] of 2; checksum"),
        ({"sources": (weight, table), "slices": True}, r"sparse for net/4d .* None for net/4d"),
        ({"sources": (weight, table), "slices": True, "sparse_as_dense": True}, "None for net/4d"),
    )
    for mode in modes():

        def run(mode=mode, **options):
            def call():
                return gradients(**options)

            call = call if mode == "eager" else tf.function(call, jit_compile=mode == "jit")
            return call()

        for options, text in cases:
            with pytest.raises(tf.errors.FailedPreconditionError, match=text):
                run(**options)
        # The remedy works, and so do gradients that are None on every rank.
        np.testing.assert_allclose(run(unconnected=tf.UnconnectedGradients.ZERO)[1], [0.5, 0.5])
        found, nothing = run(uses_bias=False)
        np.testing.assert_allclose(found, np.ones(3))
        assert nothing is None
        assert run(uses_bias=False, sources=(bias,)) == [None]


@on_tensorflow_ranks("shm2")
def test_none_on_one_rank_in_a_session():
    from harness.tensorflow_training import door

    tf, hvd = door()
    for options in ({}, {"backward_passes_per_step": 2}, {"groups": 2}):
        with tf.Graph().as_default():
            weight, bias = (tf.Variable(np.ones(3), name=name) for name in ("weight", "bias"))
            loss = tf.reduce_sum(weight) + (tf.reduce_sum(bias) if hvd.rank() == 0 else 0)
            optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), **options)
            pairs = optimizer.compute_gradients(loss, [weight, bias])
            assert len(pairs) == 2
            gradients = [gradient for gradient, _ in pairs if gradient is not None]
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                passes = options.get("backward_passes_per_step", 1)
                for _ in range(passes - 1):
                    session.run(gradients)
                with pytest.raises(tf.errors.FailedPreconditionError, match="gradients of . variable"):
                    session.run(gradients)


@on_tensorflow_ranks("shm2")
def test_copies_of_an_optimizer_reduce_like_the_optimizer():
    from harness.tensorflow_training import door

    tf, hvd = door()
    distributed = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
    for way in (copy.copy, copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))):
        copied, variable = way(distributed), tf.Variable(np.zeros(2))

        def loss(variable=variable):
            return tf.reduce_sum(variable) * 2.0 * hvd.rank()

        copied.apply_gradients(copied.compute_gradients(loss, [variable]))
        np.testing.assert_allclose(variable, [-1.0, -1.0])
