# SPDX-License-Identifier: Apache-2.0
"""Whole trainings: bit for bit equal to DistributedDataParallel, under torch.compile, and with overlap."""

import gc
import json
import os
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from harness.torch_training import (
    OPTIMIZERS,
    batches,
    check_same_weights,
    loss_of,
    make_model,
    on_torch_ranks,
    shard,
    train_alone,
    weights,
)
from harness.worlds import World
from testkit.variables import free_port

import horovod.torch as hvd


@pytest.mark.checked_numbers("weights after training", against="DistributedDataParallel over Gloo, bit for bit")
@pytest.mark.parametrize("name", OPTIMIZERS)
@on_torch_ranks("shm2")
def test_two_ranks_equal_ddp_bit_for_bit(name):
    port = hvd.broadcast_object(free_port(), name="port")
    dist.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", timedelta(seconds=60), rank=hvd.rank(), world_size=hvd.size()
    )
    try:
        ours, theirs = make_model(), make_model()
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name](ours.parameters()), ours.named_parameters())
        ddp = torch.nn.parallel.DistributedDataParallel(theirs)
        plain = OPTIMIZERS[name](theirs.parameters())
        for images, labels in batches(50):
            for model, stepper in ((ours, optimizer), (ddp, plain)):
                stepper.zero_grad()
                loss_of(model, shard(images), shard(labels)).backward()
                stepper.step()
        assert torch.equal(weights(ours), weights(theirs))
        del model, ddp  # a reducer that outlives its process group may hang in its destructor
    finally:
        gc.collect()
        dist.destroy_process_group()


OLD_COMPILER = not hasattr(torch.library, "register_autograd")


@pytest.mark.checked_numbers("training with torch.compile", against="a single process")
@pytest.mark.parametrize(
    "what",
    [
        "model",
        pytest.param(
            "whole step", marks=pytest.mark.skipif(OLD_COMPILER, reason="before torch 2.4 the compiler fails at it")
        ),
    ],
)
@on_torch_ranks("shm2")
def test_compiled(what):
    # A backend that traces like the others is enough, because Horovod does not generate code.
    model = make_model()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
    forward = torch.compile(model, backend="aot_eager") if what == "model" else model

    def step(images, labels):
        optimizer.zero_grad()
        loss_of(forward, images, labels).backward()
        optimizer.step()

    run = step if what == "model" else torch.compile(step, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own deprecation warnings
        for images, labels in batches(5):
            run(shard(images), shard(labels))
    torch._dynamo.reset()
    return check_same_weights(model, train_alone(OPTIMIZERS["sgd"], 5))


class Mark(torch.autograd.Function):
    """Identity function that calls `reached` when the backward pass comes to it."""

    @staticmethod
    def forward(ctx, tensor, reached):
        ctx.reached = reached
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        ctx.reached()
        return gradient, None


OVERLAP = World("overlap2", "a:2", {"HOROVOD_TIMELINE": "DYNAMIC", "HOROVOD_TORCH_OVERLAP": "1"})


def agree_on_names(first, last, optimizer):
    """Make one step, because an optimizer sends no gradient before its first exchange."""
    last(first(torch.ones(1, 4))).sum().backward()
    assert not optimizer._reducer._flights
    optimizer.step()
    optimizer.zero_grad()


@on_torch_ranks(OVERLAP)
def test_last_layers_are_reduced_before_backward_ends():
    # The backward pass of the first layer waits for the reduction of the last layer's gradient.
    first, last = torch.nn.Linear(4, 400), torch.nn.Linear(400, 400)  # large enough to be sent at once
    model = torch.nn.ModuleList([first, last])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    agree_on_names(first, last, optimizer)
    done = []

    def wait_for_last_layer():
        assert optimizer._reducer._flights, "no reduction has begun"
        optimizer._reducer._flights.wait()
        done.append(True)

    loss = last(Mark.apply(first(torch.ones(1, 4)), wait_for_last_layer)).sum()
    loss.backward()
    assert done == [True]
    optimizer.step()


@on_torch_ranks(OVERLAP)
def test_timeline_shows_the_overlap():
    path = Path(hvd.broadcast_object(f"/tmp/overlap-{os.getpid()}.json", name="path"))
    first, last = torch.nn.Linear(4, 400), torch.nn.Linear(400, 400)  # large enough to be sent at once
    model = torch.nn.ModuleList([first, last])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())

    agree_on_names(first, last, optimizer)

    def barrier():
        optimizer._reducer._flights.wait()
        hvd.allreduce(torch.ones(1), name="middle.of.backward")

    hvd.start_timeline(str(path))
    last(Mark.apply(first(torch.ones(1, 4)), barrier)).sum().backward()
    optimizer.step()
    hvd.stop_timeline()
    hvd.barrier()
    if hvd.rank() == 0:
        events = json.loads(path.read_text())
        path.unlink()
        names = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
        starts = {}
        for event in events:
            if event["ph"] in "BX" and event["pid"] in names:
                starts.setdefault(names[event["pid"]], event["ts"])
        assert starts["allreduce.1.weight"] < starts["allreduce.middle.of.backward"] < starts["allreduce.0.weight"]
    hvd.barrier()
