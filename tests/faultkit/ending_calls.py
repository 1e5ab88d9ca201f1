# SPDX-License-Identifier: Apache-2.0
"""Calls that the threads of programs/ending.py make.

A kind is FRAMEWORK.CALL; each set-up runs once, in the main thread. A kind that ends with ":waits" never returns,
because the other rank does not call it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import horovod.numpy as hvd

Call = Callable[[], object]
_modules: dict[str, Any] = {}
_groups: dict[str, Any] = {}
_forever = threading.Event()


def _name() -> str:
    """Return the name of the calling thread, which equals that of its counterpart on the other rank."""
    return threading.current_thread().name


def _other() -> int:
    return 1 - hvd.rank()


# ---- NumPy


def _allreduce() -> object:
    return hvd.allreduce(np.ones(8, np.float32), name=_name())


def _allgather() -> object:
    return hvd.allgather(np.ones((2, 3)), name=_name())


def _asynchronous() -> object:
    handles = [hvd.allreduce_async(np.ones(8), name=f"{_name()}.{index}") for index in range(3)]
    while not hvd.poll(handles[0]):
        pass
    return [hvd.synchronize(handle) for handle in handles]


def _objects() -> object:
    return hvd.allgather_object({"rank": hvd.rank()}, name=_name())


def _messages() -> object:
    mine, theirs = np.ones(16), np.empty(16)
    sent = hvd.send_async(mine, _other(), tag=7)
    hvd.recv(theirs, _other(), tag=7)
    return hvd.synchronize(sent)


def _barrier() -> object:
    return hvd.barrier()


def _join() -> object:
    return hvd.join() if hvd.rank() == 0 else _forever.wait()


def _alone() -> object:
    return hvd.allreduce(np.ones(8), name=f"of rank {hvd.rank()} alone")


# ---- PyTorch


def _set_up_torch() -> None:
    import torch

    import horovod.torch

    torch.set_num_threads(1)
    hvd.init()
    _modules.update(torch=torch, hvd=horovod.torch)


def _torch_allreduce() -> object:
    return _modules["hvd"].allreduce(_modules["torch"].ones(8), name=_name())


def _torch_group() -> object:
    tensors = [_modules["torch"].ones(8), _modules["torch"].ones(3)]
    return _modules["hvd"].synchronize(_modules["hvd"].grouped_allreduce_async_(tensors, name=_name()))


def _torch_messages() -> object:
    mine, theirs = _modules["torch"].ones(16), _modules["torch"].empty(16)
    sent = _modules["hvd"].send_async(mine, _other(), tag=8)
    _modules["hvd"].recv(theirs, _other(), tag=8)
    return _modules["hvd"].synchronize(sent)


def _torch_barrier() -> object:
    return _modules["hvd"].barrier()


def _torch_join() -> object:
    return _modules["hvd"].join() if hvd.rank() == 0 else _forever.wait()


def _torch_step() -> object:
    torch = _modules["torch"]
    if "model" not in _modules:
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        _modules["optimizer"] = _modules["hvd"].DistributedOptimizer(optimizer, model.named_parameters())
        _modules["model"] = model
    _modules["optimizer"].zero_grad()
    _modules["model"](torch.ones(2, 4)).sum().backward()
    return _modules["optimizer"].step()


def _set_up_torch_distributed() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("horovod")
    hvd.init()
    _modules.update(torch=torch, dist=dist)
    for kind in KINDS:
        if SET_UP[kind.split(":")[0]] is _set_up_torch_distributed:
            _groups[kind] = dist.new_group([0, 1])


def _distributed_allreduce() -> object:
    return _modules["dist"].all_reduce(_modules["torch"].ones(8), group=_groups[_name()])


def _distributed_future() -> object:
    tensor = _modules["torch"].ones(8)
    work = _modules["dist"].all_reduce(tensor, group=_groups[_name()], async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / 2).wait()


def _distributed_messages() -> object:
    dist, theirs = _modules["dist"], _modules["torch"].empty(16)
    work = dist.isend(_modules["torch"].ones(16), _other(), group=_groups[_name()])
    dist.recv(theirs, _other(), group=_groups[_name()])
    return work.wait()


def _distributed_barrier() -> object:
    return _modules["dist"].barrier(group=_groups[_name()])


# ---- TensorFlow


def _set_up_tensorflow() -> None:
    import tensorflow as tf

    import horovod.tensorflow

    hvd.init()
    _modules.update(tf=tf, hvd=horovod.tensorflow)


def _tensorflow_eager() -> object:
    return _modules["hvd"].allreduce(_modules["tf"].ones(8), name=_name())


def _tensorflow_function(jit: bool) -> Call:
    made = threading.local()

    def call() -> object:
        if not hasattr(made, "function"):
            name = _name()
            made.function = _modules["tf"].function(
                lambda tensor: _modules["hvd"].allreduce(tensor, name=name), jit_compile=jit
            )
        return made.function(_modules["tf"].ones(8))

    return call


# ---- JAX


def _set_up_jax() -> None:
    import jax

    import horovod.jax

    hvd.init()
    _modules.update(hvd=horovod.jax, ones=jax.numpy.ones(8))


def _jax_alone() -> object:
    """Wait in a call of Horovod instead of JAX, because JAX aborts a program that ends while a thread is in JAX."""
    return _modules["hvd"].allreduce(_modules["ones"], name=f"of rank {hvd.rank()} alone")


# ---- MXNet


def _set_up_mxnet() -> None:
    import mxnet

    import horovod.mxnet

    hvd.init()
    _modules.update(mx=mxnet, hvd=horovod.mxnet)


def _mxnet_allreduce() -> object:
    return _modules["hvd"].allreduce(_modules["mx"].nd.ones(8), name=_name()).wait_to_read()


def _mxnet_broadcast() -> object:
    return _modules["hvd"].broadcast(_modules["mx"].nd.ones(8), 0, name=_name()).asnumpy()


_CALLS: dict[Callable[[], None], dict[str, Call]] = {
    hvd.init: {
        "numpy.allreduce": _allreduce,
        "numpy.allgather": _allgather,
        "numpy.asynchronous": _asynchronous,
        "numpy.objects": _objects,
        "numpy.messages": _messages,
        "numpy.barrier": _barrier,
        "numpy.join:waits": _join,
        "numpy.alone:waits": _alone,
    },
    _set_up_torch: {
        "torch.allreduce": _torch_allreduce,
        "torch.group": _torch_group,
        "torch.messages": _torch_messages,
        "torch.barrier": _torch_barrier,
        "torch.join:waits": _torch_join,
        "torch.step": _torch_step,
    },
    _set_up_torch_distributed: {
        "distributed.allreduce": _distributed_allreduce,
        "distributed.future": _distributed_future,
        "distributed.messages": _distributed_messages,
        "distributed.barrier": _distributed_barrier,
    },
    _set_up_tensorflow: {
        "tensorflow.eager": _tensorflow_eager,
        "tensorflow.function": _tensorflow_function(jit=False),
        "tensorflow.jit": _tensorflow_function(jit=True),
    },
    _set_up_jax: {"jax.alone:waits": _jax_alone},
    _set_up_mxnet: {"mxnet.allreduce": _mxnet_allreduce, "mxnet.broadcast": _mxnet_broadcast},
}
KINDS: dict[str, Call] = {kind: call for calls in _CALLS.values() for kind, call in calls.items()}
SET_UP: dict[str, Callable[[], None]] = {
    kind.split(":")[0]: set_up for set_up, calls in _CALLS.items() for kind in calls
}
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
