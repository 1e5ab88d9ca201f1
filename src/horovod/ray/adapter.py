# SPDX-License-Identifier: Apache-2.0
"""Interface of the executors' implementations, for a fixed and for a changing number of workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class BaseParams:
    """Resources that each worker needs."""

    cpus_per_worker: int = 1
    use_gpu: bool = False
    gpus_per_worker: int | None = None

    def __post_init__(self) -> None:
        if self.gpus_per_worker and not self.use_gpu:
            raise ValueError(f"gpus_per_worker is {self.gpus_per_worker}, but use_gpu is False: pass use_gpu=True")
        if self.use_gpu and self.gpus_per_worker is not None and self.gpus_per_worker <= 0:
            raise ValueError(f"gpus_per_worker must be more than 0 with use_gpu=True, not {self.gpus_per_worker}")
        if self.cpus_per_worker < 0:
            raise ValueError(f"cpus_per_worker must not be negative, it is {self.cpus_per_worker}")


class Adapter(ABC):
    """Implementation of an executor."""

    @abstractmethod
    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the workers, and create an object of `executable_cls` in each."""

    @abstractmethod
    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """Return what `fn(executable)` returns in each worker, by rank."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Return what `fn(*args, **kwargs)` returns in each worker, by rank."""

    @abstractmethod
    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Start `fn(*args, **kwargs)` in each worker, and return Ray's references to the results at once."""

    @abstractmethod
    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Return what `fn(executable)` returns in the worker of rank 0."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the workers and release their resources."""
