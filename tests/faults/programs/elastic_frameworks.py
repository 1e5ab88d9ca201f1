# SPDX-License-Identifier: Apache-2.0
"""Train elastically with compiled steps until a file appears; report the first step of each generation.

Arguments: the file, and tensorflow, keras, jax or torch. Compiled functions are kept over all generations, and use a
process set.
"""

import os
import sys
import time

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd
from horovod.common.context import default_context

STOP, FRAMEWORK = sys.argv[1:3]
BIRTH = int(os.environ["HOROVOD_BIRTH_ID"])
PAIR = hvd.ProcessSet([0, 1])
compilations = []  # one entry for each tracing of a step


def is_over():
    return bool(hvd.allreduce(np.array([float(os.path.exists(STOP))]), name="stop")[0])


def tell(state, in_pair):
    """Report a step. `in_pair` is a compiled sum of ones over the pair, so it equals the number of its members."""
    details = {"pair": PAIR.size(), "in_pair": None if in_pair is None else float(in_pair)}
    details |= {"generation": default_context.generation, "traces": len(compilations), "steps": state.steps}
    report("stepped", birth=BIRTH, size=hvd.size(), **details)


def train(state, step):
    is_new = True
    while not is_over():
        in_pair = step(state)
        state.steps += 1
        if is_new:
            tell(state, in_pair)
            is_new = False
        state.commit()
        time.sleep(0.005)  # leaves processor time for the replacement, which is importing modules


def data(rows=8):
    random = np.random.default_rng(hvd.rank())
    return random.normal(size=(rows, 4)).astype(np.float32), random.normal(size=(rows, 1)).astype(np.float32)


def with_tensorflow():
    import tensorflow as tf

    import horovod.tensorflow as door

    weights = [tf.Variable(tf.zeros([4, 1])), tf.Variable(tf.zeros([1]))]
    x, y = map(tf.constant, data())

    @tf.function
    def compiled(x, y):
        compilations.append(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights[0] + weights[1] - y) ** 2)
        gradients = door.DistributedGradientTape(tape).gradient(loss, weights)
        for variable, gradient in zip(weights, gradients, strict=True):
            variable.assign_sub(0.01 * gradient)
        return door.allreduce(tf.ones([]), op=door.Sum, name="pair", process_set=PAIR) if PAIR.included() else loss

    def step(state):
        found = compiled(x, y).numpy()
        return found if PAIR.included() else None

    state = door.elastic.TensorFlowState(weights, steps=0)
    door.elastic.run(train)(state, step)
    return state.steps, float(sum(tf.reduce_sum(one) for one in weights))


def with_keras():
    import keras

    import horovod.keras as door

    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer=door.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)), loss="mse")
    x, y = data(16)
    state = door.elastic.KerasState(model, steps=0, batch=0, epoch=0)

    class Steps(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            state.steps += 1

    @door.elastic.run
    def fit(state):
        is_new = True
        callbacks = [
            Steps(),
            door.elastic.UpdateBatchStateCallback(state),
            door.elastic.UpdateEpochStateCallback(state),
            door.elastic.CommitStateCallback(state),
        ]
        while not is_over():
            first = state.epoch
            model.fit(x, y, 8, epochs=first + 1, initial_epoch=first, callbacks=callbacks, verbose=0)
            if is_new:
                tell(state, None)
                is_new = False

    fit(state)
    return state.steps, float(sum(np.sum(one) for one in model.get_weights()))


def with_jax():
    import jax
    import jax.numpy as jnp

    import horovod.jax as door

    x, y = map(jnp.asarray, data())

    def loss(params):
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    @jax.jit
    def compiled(params):
        compilations.append(1)
        gradients = door.allreduce(jax.grad(loss)(params), name="gradients")
        updated = jax.tree_util.tree_map(lambda one, gradient: one - 0.01 * gradient, params, gradients)
        if not PAIR.included():
            return updated, jnp.zeros(1)
        return updated, door.allreduce(jnp.ones(1), op=door.Sum, name="pair", process_set=PAIR)

    def step(state):
        state.params, in_pair = compiled(state.params)
        found = float(jax.block_until_ready(in_pair)[0])
        return found if PAIR.included() else None

    state = door.elastic.JaxState(params={"w": jnp.zeros((4, 1)), "b": jnp.zeros(1)}, steps=0)
    door.elastic.run(train)(state, step)
    return state.steps, float(sum(jnp.sum(one) for one in state.params.values()))


def with_torch():
    import torch

    import horovod.torch as door

    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = door.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), process_set=PAIR)
    x, y = map(torch.from_numpy, data())

    def step(state):
        state.optimizer.zero_grad()
        torch.nn.functional.mse_loss(state.model(x), y).backward()
        state.optimizer.step()
        own = torch.stack([one.detach().sum() for one in model.parameters()])
        if PAIR.included():  # the optimizer's own process set, whose members have equal weights
            assert door.allreduce(own, op=door.Max, name="most", process_set=PAIR).tolist() == own.tolist()
        return door.allreduce(torch.ones([]), op=door.Sum, name="pair", process_set=PAIR) if PAIR.included() else None

    state = door.elastic.TorchState(model, optimizer, steps=0)
    door.elastic.run(train)(state, step)
    return state.steps, 0.0


hvd.init(process_sets=[PAIR])
report("ready", birth=BIRTH)
steps, weights = globals()[f"with_{FRAMEWORK}"]()
report("done", birth=BIRTH, size=hvd.size(), steps=steps, weights=weights)
