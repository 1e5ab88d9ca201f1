# SPDX-License-Identifier: Apache-2.0
"""Variables that are assigned while an operation on their values is in flight.

A value that is read shares its variable's memory. TensorFlow writes into that memory only if no other tensor uses it,
so an operation must hold its tensors until it is complete. Rank 1 calls after rank 0 has assigned.
"""

import threading

import numpy as np
import pytest
from harness.arrays import inputs, mine, reduced
from harness.worlds import on_all_ranks

LARGE = 100_000  # number of elements
UPDATES = {
    "assign": lambda tf, variable: variable.assign(tf.fill([LARGE], -1.0)),
    "assign_add": lambda tf, variable: variable.assign_add(tf.fill([LARGE], 100.0)),
    "scatter_update": lambda tf, variable: variable.scatter_update(
        tf.IndexedSlices(tf.fill([LARGE], -1.0), tf.range(LARGE))
    ),
}


def meet():
    """Wait for the other rank by name, because the ranks call this in different orders."""
    from horovod import numpy as hvd_numpy

    hvd_numpy.allreduce(np.ones(1), name="rank 0 has assigned")


def _program(tf, hvd, mode, variable, update):
    """Return a function without arguments that reduces the value before the update."""
    if mode == "eager":
        value = variable.read_value()
        return lambda: hvd._allreduce(value, name="in_flight", op=hvd.Sum)

    @tf.function(autograph=False)
    def reduce_and_update():
        total = hvd._allreduce(variable.read_value(), name="in_flight", op=hvd.Sum)
        update(tf, variable)
        return total

    return reduce_and_update


@pytest.mark.checked_numbers("a TensorFlow variable that is assigned to while its value is reduced", against="NumPy")
@pytest.mark.parametrize("way", ["native", "through Python"])
@pytest.mark.parametrize("mode", ["eager", "function"])
@on_all_ranks("shm2", limit_s=60)
def test_a_variable_may_be_assigned_to_meanwhile(mode, way):
    from harness.tensorflow_door import hvd, tf, ways

    arrays = inputs((LARGE,), "float32", "in flight")
    with pytest.MonkeyPatch.context() as patch:
        if way == "through Python":
            patch.setattr(ways, "operations", None)
        for name, update in UPDATES.items():
            variable = tf.Variable(mine(arrays))
            before = variable.numpy().copy()
            program = _program(tf, hvd, mode, variable, update)
            if hvd.rank() == 1:
                meet()
                result = program()
            else:
                results = []
                thread = threading.Thread(target=lambda run=program, to=results: to.append(run().numpy()))
                thread.start()
                if mode == "eager":
                    update(tf, variable)
                del program
                while np.array_equal(variable.numpy(), before):
                    assert thread.is_alive()
                meet()
                thread.join(30)
                (result,) = results
            np.testing.assert_array_equal(result, reduced(arrays, "Sum"), err_msg=name)
