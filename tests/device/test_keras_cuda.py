# SPDX-License-Identifier: Apache-2.0
"""Keras 3, on torch and on JAX, on a GPU that two processes share, on a machine that has one."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from testkit.launcher import horovodrun

HERE = Path(__file__).parent
PROGRAM = [sys.executable, str(HERE / "keras_program.py")]
OVER_NCCL = [sys.executable, str(HERE / "with_nccl.py"), str(HERE / "keras_program.py")]
# By default JAX takes three quarters of the GPU's memory and multiplies with a lower precision than the comparison
# allows.
OF_JAX = {
    "JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_DEFAULT_MATMUL_PRECISION": "highest",
}  # fmt: skip
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine"),
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed here"),
    pytest.mark.timeout(75),
]


@pytest.mark.parametrize("transport", ["auto", "nccl"])
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras_on_a_gpu(backend: str, transport: str) -> None:
    if backend == "jax" and not any(map(importlib.util.find_spec, PLUGINS)):
        pytest.skip("JAX has no plugin for CUDA here")
    env = {**OF_JAX, "KERAS_BACKEND": backend, "HOROVOD_GPU_TRANSPORT": transport, "HOROVOD_LOG_LEVEL": "info"}
    done = horovodrun("-np", "2", *(OVER_NCCL if transport == "nccl" else PROGRAM), env=env, limit_s=58)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("CUDA tensors go through NCCL 2." in done.stdout) == (transport == "nccl"), done.stdout
    assert "CUDA tensors go through" in done.stdout, done.stdout
    assert done.stdout.count("all checks passed") == 2, done.stdout
