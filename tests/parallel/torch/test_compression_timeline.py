# SPDX-License-Identifier: Apache-2.0
"""Timelines of compressed steps: the names say between whom values travel compressed."""

import os
from pathlib import Path

import torch
from harness.torch_training import on_torch_ranks
from harness.traces import Trace
from harness.worlds import DYNAMIC, SMALL_CHUNKS, World

import horovod.torch as hvd

ON_REQUEST = {"HOROVOD_TIMELINE": "DYNAMIC"} | SMALL_CHUNKS | DYNAMIC
# The worlds of other tests of timelines.
HOSTS = World("timeline-hosts3", "a:2,b:1", ON_REQUEST)
ONE_HOST = World("timeline-shm2", "a:2", ON_REQUEST)


def traced(*methods):
    """Make one step by each method. Return the timeline on rank 0, None on the others."""
    path = Path(hvd.broadcast_object(f"/tmp/compression-{os.getpid()}.json", name="path"))
    hvd.start_timeline(str(path))
    hvd.barrier()
    for method in methods:
        parameter = torch.nn.Parameter(torch.zeros(20_000))
        sgd = torch.optim.SGD([parameter], lr=1.0)
        optimizer = hvd.DistributedOptimizer(sgd, [(method.name, parameter)], compression=method)
        (parameter * torch.arange(20_000.0)).sum().backward()
        optimizer.step()
    hvd.stop_timeline()
    hvd.barrier()
    if hvd.rank():
        return None
    trace = Trace(path)
    path.unlink()
    return trace


@on_torch_ranks(HOSTS)
def test_names_tell_between_hosts_from_between_ranks():
    trace = traced(hvd.Compression.int8(), hvd.Compression.topk(0.1, scope="all"), hvd.Compression.dgc(0.1, 0.9))
    if trace is not None:
        for parameter, scope, stage in (
            ("int8", "between-hosts", "sums"),
            ("topk", "between-ranks", "largest"),
            ("dgc", "between-hosts", "largest"),
        ):
            found = [it for it in trace.names.values() if it.startswith(f"alltoall.hook.{parameter}.")]
            assert found
            assert all(f".{scope}." in it for it in found), found
            assert any(it.endswith(f".{scope}.{stage}") for it in found), found


@on_torch_ranks(ONE_HOST)
def test_on_one_host_an_event_says_that_gradients_stay_dense():
    trace = traced(hvd.Compression.int8(), hvd.Compression.dgc(0.1, 0.9))
    if trace is not None:
        assert "int8: dense-on-one-host" in [it.get("name") for it in trace.of("(program)")]
        assert "allreduce.int8" in trace.names.values()
        assert any(".dense-on-one-host." in it for it in trace.names.values() if it.startswith("allreduce.hook.dgc."))
