# SPDX-License-Identifier: Apache-2.0
"""Several optimizers in one program: ranks reduce matching optimizers together, whatever else they made before."""

import copy
import os
import pickle
from unittest import mock

import numpy as np
import pytest
from harness.keras_worlds import ALL, KERAS_2, KERAS_3, ON_TENSORFLOW
from harness.sets import process_sets
from harness.worlds import on_all_ranks

from horovod.common.exceptions import HorovodWarning

START_S = 200  # seconds; the first test of a world imports its frameworks on all ranks at once
STALLS_END = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1"}
# Two players with equal shapes, one with other shapes, and one with fewer variables.
SHAPES = {"first": [(2,), (3,)], "second": [(2,), (3,)], "third": [(4,), (3,)], "fourth": [(2, 2)]}


class Players:
    """Variables and optimizers of several players. Rank 1 makes them in reverse order; rank 0 makes one more first."""

    def __init__(self, **options):
        from harness import keras_door as door

        self.hvd, me = door.hvd, door.hvd.rank()
        make = door.keras.optimizers.SGD
        if me == 0:
            self.unused = self.hvd.DistributedOptimizer(make(1.0))
        order = list(SHAPES) if me == 0 else list(reversed(SHAPES))
        self.optimizers = {name: self.hvd.DistributedOptimizer(make(1.0), **options) for name in order}
        self.variables = {name: [door.variable(np.zeros(shape)) for shape in SHAPES[name]] for name in order}

    def step(self, *names):
        """Apply gradients that are n + 10 * rank for the n-th player."""
        from harness import keras_door as door

        for name in names:
            value = 1.0 + list(SHAPES).index(name) + 10 * self.hvd.rank()
            gradients = [door.gradient(np.full(variable.shape, value)) for variable in self.variables[name]]
            self.optimizers[name].apply_gradients(list(zip(gradients, self.variables[name], strict=True)))

    def check(self, steps=1):
        for number, name in enumerate(SHAPES, start=1):
            for variable in self.variables[name]:
                np.testing.assert_allclose(np.asarray(variable), -steps * (number + 5.0), err_msg=name)


@pytest.mark.checked_numbers("gradients of four optimizers, made in another order on one rank", against="the mean")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_each_is_reduced_with_its_like():
    from harness import keras_door as door

    players = Players()
    players.step("first", "second", "third", "fourth")
    players.step("first", "second", "third", "fourth")
    players.check(steps=2)
    grouped = Players(groups=2)
    grouped.step("second", "fourth", "first", "third")
    grouped.check()
    if door.BACKEND == "jax":
        return  # because compiling two passes takes seconds with JAX
    summed = Players(backward_passes_per_step=2, average_aggregated_gradients=True)
    for _ in range(2):
        summed.step("second", "first", "third", "fourth")
    summed.check()


@pytest.mark.checked_numbers("gradients of optimizers alike in overlapping process sets", against="the mean")
@pytest.mark.skipif(not ON_TENSORFLOW, reason="needs four ranks, which only tests of TensorFlow start")
@on_all_ranks("shm4", limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_process_sets_that_overlap():
    from harness import keras_door as door

    hvd, me = door.hvd, door.hvd.rank()
    with process_sets([0, 1, 2], [1, 2, 3]) as (first, second):
        sets = (first, second, second, hvd.global_process_set)
        optimizers = [hvd.DistributedOptimizer(door.keras.optimizers.SGD(1.0), process_set=it) for it in sets]
        variables = [door.variable(np.zeros(2)) for _ in sets]
        for _ in range(2):
            for number, (optimizer, variable) in enumerate(zip(optimizers, variables, strict=True)):
                gradient = door.gradient(np.full(2, 10.0**number * (1 + me)))
                optimizer.apply_gradients([(gradient, variable)])
        for number, (together, variable) in enumerate(zip(sets, variables, strict=True)):
            mean = 1 + np.mean(together.ranks if together.included() else [me])
            np.testing.assert_allclose(np.asarray(variable), np.full(2, -2 * 10.0**number * mean))


@pytest.mark.checked_numbers("gradients after a step that one rank left out", against="the mean")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_an_optimizer_that_one_rank_leaves_out():
    """Rank 1's next optimizer has variables of other sizes, and is matched with the one that it left out."""
    from harness import keras_door as door

    players, hvd = Players(), door.hvd
    with pytest.raises(door.MISMATCH, match="gradients of 2 variables"):
        players.step(*(["first"] if hvd.rank() == 0 else []), "third")
    hvd.shutdown()
    hvd.init()
    players.step(*SHAPES)
    players.check()


@pytest.mark.checked_numbers("gradients of two named optimizers alike", against="the mean")
@on_all_ranks(*ON_TENSORFLOW, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_names_that_tell_optimizers_alike_apart():
    """Ranks that use them in different orders do not mix gradients: they wait until the stall check ends the job."""
    from harness import keras_door as door

    hvd, me = door.hvd, door.hvd.rank()
    order = ("generator", "critic") if me == 0 else ("critic", "generator")
    optimizers = {name: hvd.DistributedOptimizer(door.keras.optimizers.SGD(1.0), name=name) for name in order}
    variables = {name: door.variable(np.zeros(2)) for name in order}

    def step(*names):
        for name in names:
            gradient = door.gradient(np.full(2, (1.0 if name == "critic" else 10.0) * (1 + me)))
            optimizers[name].apply_gradients([(gradient, variables[name])])

    for _ in range(2):
        step("critic", "generator")
    hvd.shutdown()
    with mock.patch.dict(os.environ, STALLS_END):
        hvd.init()
    with pytest.raises(Exception, match="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"):
        step(*order)
    hvd.shutdown()
    hvd.init()
    step("critic", "generator")
    for name, mean in (("critic", 1.5), ("generator", 15.0)):
        np.testing.assert_allclose(np.asarray(variables[name]), np.full(2, -3 * mean))


@pytest.mark.checked_numbers("gradients of four optimizers in two worlds, new ones on one rank", against="the mean")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_a_new_world():
    from harness import keras_door as door

    hvd = door.hvd
    players = Players()
    players.step("second", "first", "third", "fourth")
    hvd.shutdown()
    hvd.init()
    if hvd.rank() == 1:  # rank 1 plays a new worker of an elastic job, with optimizers that were made and used before
        before, players = players, Players()
        for name, variables in before.variables.items():
            for new, old in zip(players.variables[name], variables, strict=True):
                new.assign(np.asarray(old))
    players.step("first", "second", "third", "fourth")
    players.check(steps=2)


@pytest.mark.checked_numbers("gradients of four optimizers in one compiled step", against="the mean")
@on_all_ranks(*ON_TENSORFLOW, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_each_is_reduced_with_its_like_in_one_compiled_step():
    import tensorflow as tf

    players = Players()
    run = tf.function(lambda: players.step("fourth", "first", "second", "third"))
    for _ in range(3):
        run()
    players.check(steps=3)


@pytest.mark.checked_numbers("sparse gradients of two optimizers with equal names", against="the mean")
@on_all_ranks(*ON_TENSORFLOW, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_sparse_gradients_of_two_optimizers():
    import tensorflow as tf
    from harness import keras_door as door

    hvd, me = door.hvd, door.hvd.rank()
    tables = [door.variable(np.zeros((3, 2)), "embeddings") for _ in range(2)]
    optimizers = [hvd.DistributedOptimizer(door.keras.optimizers.SGD(1.0)) for _ in tables]
    if me == 1:
        optimizers.reverse()  # rank 1 has made them in the other order
    for _ in range(2):
        for factor, optimizer, table in zip((1.0, 10.0), optimizers, tables, strict=True):
            rows = tf.IndexedSlices(tf.fill([1, 2], factor), tf.constant([me]), tf.constant([3, 2]))
            optimizer.apply_gradients([(rows, table)])
    for factor, table in zip((1.0, 10.0), tables, strict=True):  # the two ranks have different rows
        np.testing.assert_allclose(np.asarray(table), np.outer([-factor, -factor, 0], [1, 1]))


@pytest.mark.checked_numbers("two models alike, trained in turn", against="a single process")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_two_models_trained_in_turn():
    from harness import keras_door as door

    hvd, sgd = door.hvd, door.keras.optimizers.SGD
    x, y = door.data(8)
    rates = {"one": 0.05, "other": 0.1}
    order = list(rates) if hvd.rank() == 0 else list(reversed(rates))
    if hvd.rank() == 0:
        door.model()  # so that Keras numbers the layers below differently on the other rank
    networks = {name: door.model(seed=len(name)) for name in order}
    optimizers = {name: hvd.DistributedOptimizer(sgd(rates[name])) for name in order}
    for name in rates:
        door.fit(networks[name], optimizers[name], door.share(x), door.share(y), door.BATCH // hvd.size(), epochs=2)
    for name, rate in rates.items():
        alone = door.model(seed=len(name))
        door.fit(alone, sgd(rate), x, y, door.BATCH, epochs=2)
        door.check_same(door.weights(networks[name]), door.weights(alone))


WAYS_TO_COPY = {"deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": lambda it: pickle.loads(pickle.dumps(it))}


@pytest.mark.skipif(not KERAS_3, reason="optimizers of Keras 2 cannot be copied")
@on_all_ranks(*KERAS_3, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_copies_are_plain_optimizers_and_say_so():
    from harness import keras_door as door

    distributed = door.hvd.DistributedOptimizer(door.keras.optimizers.SGD(0.5))
    for name, way in WAYS_TO_COPY.items():
        with pytest.warns(HorovodWarning, match="is a plain SGD: it does not reduce gradients"):
            copied = way(distributed)
        assert type(copied) is distributed.__class__, name
        assert type(copied) is not type(distributed), name
        assert float(copied.learning_rate) == 0.5, name
        again = door.hvd.DistributedOptimizer(copied)
        variable = door.variable(np.zeros(2))
        again.apply_gradients([(door.gradient(np.full(2, 1.0 + 2 * door.hvd.rank())), variable)])
        np.testing.assert_allclose(np.asarray(variable), -1.0, err_msg=name)  # half of the mean


@pytest.mark.skipif(not KERAS_2, reason="optimizers of Keras 3 can be copied")
@on_all_ranks(*KERAS_2, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_copies_are_refused_with_the_remedy():
    from harness import keras_door as door

    for make in (door.keras.optimizers.SGD, door.keras.optimizers.legacy.SGD):
        distributed = door.hvd.DistributedOptimizer(make(0.5))
        for name, way in WAYS_TO_COPY.items():
            with pytest.raises(TypeError, match=r"hvd.DistributedOptimizer\(SGD.from_config") as refused:
                way(distributed)
            assert "save the model" in str(refused.value), name
        again = door.hvd.DistributedOptimizer(make.from_config(distributed.get_config()))
        variable = door.variable(np.zeros(2))
        again.apply_gradients([(door.gradient(np.full(2, 1.0 + 2 * door.hvd.rank())), variable)])
        np.testing.assert_allclose(np.asarray(variable), -1.0)  # half of the mean
