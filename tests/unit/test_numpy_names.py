# SPDX-License-Identifier: Apache-2.0
"""The NumPy API has the names, parameters and defaults of horovod.torch."""

import inspect
import re

import pytest
from testkit.launcher import python
from testkit.processes import run

import horovod.numpy as hvd

DEFAULTS = {"Compression.none": hvd.Compression.none, "global_process_set": hvd.global_process_set, "Average": 0}

# Horovod's signatures for horovod.torch, without those that need a framework with autograd.
SET = "process_set=global_process_set"
FACTORS = "prescale_factor=1.0, postscale_factor=1.0"
COMPRESSION = "compression=Compression.none"
SIGNATURES = {
    "add_process_set": "process_set",
    "allgather": f"tensor, name=None, {SET}",
    "allgather_async": f"tensor, name=None, {SET}",
    "allgather_object": "obj, name=None",
    "allreduce": f"tensor, average=None, name=None, {COMPRESSION}, op=None, {FACTORS}, {SET}",
    "allreduce_": f"tensor, average=None, name=None, op=None, {FACTORS}, {SET}",
    "allreduce_async": f"tensor, average=None, name=None, op=None, {FACTORS}, {SET}",
    "allreduce_async_": f"tensor, average=None, name=None, op=None, {FACTORS}, {SET}",
    "alltoall": f"tensor, splits=None, name=None, {SET}",
    "alltoall_async": f"tensor, splits=None, name=None, {SET}",
    "barrier": SET,
    "broadcast": f"tensor, root_rank, name=None, {SET}",
    "broadcast_": f"tensor, root_rank, name=None, {SET}",
    "broadcast_async": f"tensor, root_rank, name=None, {SET}",
    "broadcast_async_": f"tensor, root_rank, name=None, {SET}",
    "broadcast_object": f"obj, root_rank=0, name=None, {SET}",
    "broadcast_parameters": "params, root_rank",
    "ccl_built": "",
    "cross_rank": "",
    "cross_size": "",
    "cuda_built": "",
    "ddl_built": "",
    "gloo_built": "",
    "gloo_enabled": "",
    "grouped_allgather": f"tensors, name=None, {SET}",
    "grouped_allgather_async": f"tensors, name=None, {SET}",
    "grouped_allreduce": f"tensors, average=None, name=None, {COMPRESSION}, op=None, {FACTORS}, {SET}",
    "grouped_allreduce_": f"tensors, average=None, name=None, op=None, {FACTORS}, {SET}",
    "grouped_allreduce_async": f"tensors, average=None, name=None, op=None, {FACTORS}, {SET}",
    "grouped_allreduce_async_": f"tensors, average=None, name=None, op=None, {FACTORS}, {SET}",
    "grouped_reducescatter": f"tensors, name=None, {COMPRESSION}, op=Average, {SET}, {FACTORS}",
    "grouped_reducescatter_async": f"tensors, name=None, op=Average, {SET}, {FACTORS}",
    "init": "comm=None, process_sets=None",
    "is_initialized": "",
    "join": "device=-1",
    "local_rank": "",
    "local_size": "",
    "mpi_built": "",
    "mpi_enabled": "",
    "mpi_threads_supported": "",
    "nccl_built": "",
    "poll": "handle",
    "rank": "",
    "reducescatter": f"tensor, name=None, {COMPRESSION}, op=Average, {SET}, {FACTORS}",
    "reducescatter_async": f"tensor, name=None, op=Average, {SET}, {FACTORS}",
    "remove_process_set": "process_set",
    "rocm_built": "",
    "shutdown": "",
    "size": "",
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
    "synchronize": "handle",
}
CONSTANTS = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    parameters = list(inspect.signature(getattr(hvd, name)).parameters.values())
    expected = [part for part in re.split(r", ?", SIGNATURES[name]) if part]
    # The API may have additional parameters, but only after those of the contract.
    for parameter, text in zip(parameters, expected, strict=False):
        wanted, has_default, default = text.partition("=")
        assert parameter.name == wanted.lstrip("*")
        if has_default:
            assert parameter.default == DEFAULTS.get(default, _literal(default))
        else:
            assert parameter.default is inspect.Parameter.empty
    assert len(parameters) >= len(expected)
    assert all(extra.default is not inspect.Parameter.empty for extra in parameters[len(expected) :])


def _literal(text: str) -> object:
    return {"None": None, "1.0": 1.0, "False": False, "0": 0, "-1": -1}.get(text, text)


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name: str) -> None:
    assert getattr(hvd, name) == CONSTANTS[name]


def test_all_lists_every_public_name_once() -> None:
    assert sorted(set(hvd.__all__)) == sorted(hvd.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    assert set(SIGNATURES) | set(CONSTANTS) <= set(hvd.__all__)


def test_import_horovod_is_light() -> None:
    code = "import sys, horovod; print(sorted({'numpy', 'torch', 'psutil', 'horovod._engine'} & set(sys.modules)))"
    done = run(python(code))
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
