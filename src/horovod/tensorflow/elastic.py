# SPDX-License-Identifier: Apache-2.0
"""Elastic training with TensorFlow: hvd.elastic.run, and the state of variables, in eager mode and in sessions."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.common.checkpoint import checkpoint as checkpoint
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.exceptions import HorovodInternalError
from horovod.common.keras_optimizers import hyperparameters_of, memories_of_optimizer
from horovod.common.slots import Slots, check_arrays, copied_values
from horovod.tensorflow.compressing import Memory, SavedMemories, is_own, memories_on
from horovod.tensorflow.functions import broadcast_object, broadcast_variables
from horovod.tensorflow.functions import broadcast_object_fn as broadcast_object_fn
from horovod.tensorflow.mpi_ops import init, rank, shutdown
from horovod.tensorflow.util import flattened, tf_variable

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

_OURS = re.compile(r"\bHorovod[A-Z]\w*: ")  # the prefix of errors of Horovod's operations; see errors.py


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function, so that training continues from the last commit when workers come or go.

    Before the function is called, all ranks receive the state of rank 0, unless workers have only left. If a rank is
    lost, the state is restored and the function is called again. Run no collective before the decorated function,
    because a new worker would run it alone.

    Args:
        func: A function whose first argument is the state, such as `train(state)`.

    Returns:
        The decorated function. It returns what `func` returns.

    Raises:
        HorovodMismatchError: The decorated function: the ranks disagree, which a restart cannot mend.
        HorovodInitializationError: The decorated function: the remaining ranks could not meet again.
        HorovodCheckpointError: The decorated function: training cannot continue from its checkpoints.

    Example:
        >>> train = hvd.elastic.run(lambda state: state.step + 1)
        >>> train(hvd.elastic.TensorFlowState([tf.Variable(4.0)], step=0))  # on 2 ranks: 1
    """

    @functools.wraps(func)
    def translated(state: Any, *args: Any, **kwargs: Any) -> Any:
        with _lost_workers():
            return func(state, *args, **kwargs)

    return run_fn(translated, _reset)


def _reset() -> None:
    shutdown()
    init()


@contextlib.contextmanager
def _lost_workers() -> Iterator[None]:
    """Raise HorovodInternalError in place of an UnknownError that comes from one of Horovod's operations.

    TensorFlow reports a lost worker as an UnknownError. Other UnknownErrors are not recoverable and stay as they are.
    """
    try:
        yield
    except tf.errors.UnknownError as error:
        if not _OURS.search(str(error)):
            raise
        raise HorovodInternalError(str(error)) from error


class _VariablesState(ObjectState):
    """State of variables and Python values; subclasses define which variables it contains."""

    def __init__(self, session: Any, **kwargs: Any) -> None:
        self._session = session
        self._assignment: tuple[Any, list[Any]] | None = None
        self._broadcast: Any = None
        self._saved_memories = SavedMemories()
        super().__init__(functools.partial(broadcast_object, session=session), rank, **kwargs)
        self._variable_slots = Slots(_copy_variable)
        self._save_variables()

    def _variables(self) -> list[Any]:
        """Return the variables that commits on disk hold."""
        raise NotImplementedError

    def _hyperparameters(self) -> list[Any]:
        """Return variables that are synced, saved and restored in memory, but that commits on disk do not hold."""
        return []

    def _all_variables(self) -> list[Any]:
        return [*self._variables(), *self._hyperparameters()]

    def _memories(self) -> list[Memory]:
        """Return the memories of compression on this rank. In a session the hyperparameters contain them."""
        return [] if self._session is not None else memories_on(self._variables())

    def _on_disk(self, values: list[Any]) -> list[Any]:
        """Return the part of saved values that a commit on disk holds."""
        return values[: len(values) - len(self._hyperparameters())]

    def _prepare(self) -> None:
        self._variable_slots.prepare(self._readable())
        self._saved_memories.prepare(self._memories())
        super()._prepare()

    def _keep(self) -> None:
        self._variable_slots.keep()
        self._saved_memories.keep()
        super()._keep()

    def _save_variables(self) -> None:
        self._variable_slots.save(self._readable())
        self._saved_memories.prepare(self._memories())
        self._saved_memories.keep()

    def restore(self) -> None:
        self._write(self._variable_slots.current)
        self._saved_memories.restore(self._memories())
        super().restore()

    def pin_commit(self) -> dict[str, Any]:
        return {**super().pin_commit(), "variables": self._on_disk(self._variable_slots.pin())}

    def release_commit(self) -> None:
        super().release_commit()
        self._variable_slots.release()

    def load_commit(self, content: dict[str, Any]) -> None:
        check_arrays(content["variables"], self._on_disk(self._variable_slots.current))
        super().load_commit(content)
        self._write([*content["variables"], *self._readable()[len(content["variables"]) :]])
        self._save_variables()

    def sync(self) -> None:
        """Copy rank 0's variables and last saved values to all ranks.

        If that fails, the saved values stay unchanged.
        """
        with _lost_workers():
            if self._session is None:
                broadcast_variables(self._all_variables(), root_rank=0)
            else:
                self._session.run(self._broadcast_operation())
            super().sync()
        self._save_variables()

    def _readable(self) -> list[Any]:
        """Return the variables, or in a session their values."""
        variables = self._all_variables()
        return variables if self._session is None else list(self._session.run(variables))

    def _write(self, values: list[Any]) -> None:
        variables = self._all_variables()
        if self._session is None:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            return
        operation, places = self._assignment_operation(variables)
        self._session.run(operation, dict(zip(places, values, strict=True)))

    def _assignment_operation(self, variables: list[Any]) -> tuple[Any, list[Any]]:
        """Return the assignment and its placeholders, built only once so that restoring does not grow the graph."""
        if self._assignment is None:
            with self._session.graph.as_default():
                places = [tf.compat.v1.placeholder(each.dtype.base_dtype, each.shape) for each in variables]
                pairs = zip(variables, places, strict=True)
                self._assignment = tf.group(*[each.assign(place) for each, place in pairs]), places
        return self._assignment

    def _broadcast_operation(self) -> Any:
        if self._broadcast is None:
            with self._session.graph.as_default():
                self._broadcast = broadcast_variables(self._all_variables(), root_rank=0)
        return self._broadcast


def _copy_variable(old: Any, variable: Any) -> Any:
    """Copy a variable's value into the memory of an earlier copy, as a slots.CopyLeaf.

    If NumPy can read TensorFlow's memory, there is no intermediate copy.
    """
    if not hasattr(variable, "read_value"):
        return NotImplemented
    tensor = variable.read_value()
    try:
        values = np.asarray(memoryview(tensor))
    except (
        TypeError,
        ValueError,
        NotImplementedError,
        RuntimeError,
    ):  # a dtype without buffer protocol, or a tensor on a GPU
        values = np.asarray(tensor.numpy())
    if values.dtype != tensor.dtype.as_numpy_dtype or values.dtype.hasobject:
        values = np.asarray(tensor.numpy())
    return values.copy() if values.dtype.hasobject else copied_values(values, old)


class TensorFlowState(_VariablesState):
    """State of your own training loop, for hvd.elastic.run(): variables and Python values.

    commit() saves all of it; restore() writes what was saved; sync() gives all ranks the variables of rank 0, and the
    values that rank 0 saved last.

    Args:
        variables: List of variables. In graphs, by default all global variables.
        session: The session, for graphs of tf.compat.v1.
        **kwargs: Any Python values, each in the attribute of its name.

    Raises:
        ValueError: `variables` is missing, and TensorFlow executes eagerly.

    Example:
        >>> state = hvd.elastic.TensorFlowState([tf.Variable(4.0)], step=0)
        >>> state.step += 1
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None:
            if session is None and tf.executing_eagerly():
                raise ValueError("TensorFlowState needs variables=..., because eager mode keeps no list of variables")
            graph = tf.compat.v1.get_default_graph() if session is None else session.graph
            with graph.as_default():
                variables = tf.compat.v1.global_variables()
        session = session or (None if tf.executing_eagerly() else tf.compat.v1.get_default_session())
        found = [tf_variable(variable) for variable in flattened(variables)]
        self.variables = [variable for variable in found if not is_own(variable)]
        # Variables that differ between ranks; in a session they all exist by now.
        self._own = [variable for variable in found if is_own(variable)]
        super().__init__(session, **kwargs)

    def _variables(self) -> list[Any]:
        return self.variables

    def _hyperparameters(self) -> list[Any]:
        return self._own


class TensorFlowKerasState(_VariablesState):
    """State of a training with a Keras model, for hvd.elastic.run(): model, optimizer and Python values.

    commit() saves all of it; restore() writes what was saved; sync() gives all ranks the variables of rank 0, and the
    values that rank 0 saved last.

    Args:
        model: The model. It must be built, so that it has weights.
        optimizer: The optimizer. By default that of the model.
        backend: keras.backend, for graphs of tf.compat.v1.
        **kwargs: Any Python values, each in the attribute of its name.

    Raises:
        ValueError: The model is not built.

    Example:
        >>> model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        >>> state = hvd.elastic.TensorFlowKerasState(model, epoch=0)
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.model = model
        if not model.built or not model.weights:
            raise ValueError(
                "TensorFlowKerasState needs a model that is built, so that there are weights to keep: give its first "
                "layer an input shape, or call the model once on a batch"
            )
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        self.backend = backend
        _build_optimizer(self.optimizer, model.trainable_variables)
        session = None if tf.executing_eagerly() or backend is None else backend.get_session()
        super().__init__(session, **kwargs)

    def _variables(self) -> list[Any]:
        found = list(self.model.variables)
        if self.optimizer is not None:
            seen = {id(tf_variable(variable)) for variable in found}
            slots = flattened(self.optimizer.variables)
            found += [variable for variable in slots if id(tf_variable(variable)) not in seen]
        return [tf_variable(variable) for variable in found]

    def _memories(self) -> list[Memory]:
        return [*super()._memories(), *memories_of_optimizer(self.optimizer)]

    def _hyperparameters(self) -> list[Any]:
        return [] if self.optimizer is None else hyperparameters_of(self.optimizer)


def _build_optimizer(optimizer: Any, variables: Any) -> None:
    """Create the optimizer's slots: a new worker has none yet, but all ranks must broadcast equally many."""
    if optimizer is None or getattr(optimizer, "built", False):
        return
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    elif hasattr(optimizer, "_create_all_weights"):  # Keras 2's older optimizers
        optimizer._create_all_weights(variables)
