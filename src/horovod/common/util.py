# SPDX-License-Identifier: Apache-2.0
"""Small helpers that Horovod scripts import from here. Questions about builds are answered for this one engine."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from horovod.common import frameworks
from horovod.common.exceptions import HorovodVersionMismatchError as HorovodVersionMismatchError
from horovod.common.exceptions import get_version_mismatch_message as get_version_mismatch_message

T = TypeVar("T")

EXTENSIONS = ["tensorflow", "torch", "mxnet"]


def _cache(f: Callable[..., T]) -> Callable[..., T]:
    """Decorate a function so that it is called once for each set of arguments."""
    return functools.cache(f)


def is_iterable(x: object) -> bool:
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return True if a number of ranks is a power of two.

    Args:
        num_rank: The number.

    Returns:
        True for 1, 2, 4, 8 and so on.

    Example:
        >>> hvd.check_num_rank_power_of_2(hvd.size())  # on 2 ranks: True
    """
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[T], n: int) -> list[Sequence[T]]:  # noqa: E741 - the contract's parameter name
    """Cut a list into consecutive parts whose lengths differ by at most one.

    Args:
        l: The list.
        n: Number of parts.

    Returns:
        The parts; the longer ones are first.

    Example:
        >>> hvd.split_list([1, 2, 3], 2)  # on 2 ranks: [[1, 2], [3]]
    """
    short, longer = divmod(len(l), n)
    ends = [0]
    for index in range(n):
        ends.append(ends[-1] + short + (index < longer))
    return [l[start:end] for start, end in itertools.pairwise(ends)]


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables for a with block; None removes a variable."""
    before = {name: os.environ.get(name) for name in kwargs}
    _set_environment(kwargs)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """Return the function for the old `average` argument.

    `reduce_ops` is ignored, because reduce operations have the same numbers in all framework APIs.
    """
    from horovod.common.rules import resolve_op  # imported late because it needs NumPy, and this module does not

    return resolve_op


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return True if a version is at least another one.

    What follows the digits of a part, such as rc1 or +cpu, does not count.

    Args:
        ver: A version such as '2.10.0'.
        target: The version to compare it with.

    Returns:
        True if `ver` is not older than `target`.

    Example:
        >>> hvd.is_version_greater_equal_than('2.10.0', '2.9')  # on 2 ranks: True
    """
    return _version_numbers(ver) >= _version_numbers(target)


def _version_numbers(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split("+")[0].split(".")[:3]:
        digits = "".join(character for character in part if character.isdigit())
        numbers.append(int(digits or 0))
    return tuple(numbers)


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Raise `exception`, if any. There is no version to check, because the engine is built against no framework."""
    if exception is not None:
        raise exception


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise ImportError, with what to install, if a framework is missing.

    Args:
        ext_name: The API's module, for example 'horovod.torch'.
        ext_env_var: Has no effect.
        pkg_path: Has no effect.
        *args: Have no effect.

    Raises:
        ImportError: The framework is not installed.

    Example:
        >>> name = hvd.__name__
        >>> hvd.check_extension(name, '', '')
    """
    frameworks.require(ext_name)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    available = frameworks.is_installed(ext_base_name)
    if verbose:
        print(f"{ext_base_name}: {'available' if available else 'not installed'}")
    return available


def get_ext_suffix() -> str:
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(pkg_path)), *args) + get_ext_suffix()


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return False, for programs written for Horovod.

    Args:
        ext_base_name: Has no effect.
        verbose: Has no effect.

    Returns:
        False.

    Example:
        >>> hvd.gpu_available('tensorflow')  # on 2 ranks: False
    """
    return False


def mpi_built(verbose: bool = False) -> bool:
    """Return True if MPI can move tensors in jobs that mpirun starts, which needs mpi4py."""
    from horovod.common import mpi_library

    return mpi_library.is_installed()


def gloo_built(verbose: bool = False) -> bool:
    """Return True: the engine replaces Gloo (a TCP controller and CPU collectives without MPI)."""
    return True


def nccl_built(verbose: bool = False) -> int:
    """Return NCCL's version number (22809 is 2.28.9), or 0 if none is installed. NCCL is loaded when it is needed."""
    from horovod.common import nccl_library

    return nccl_library.version()


def ddl_built(verbose: bool = False) -> bool:
    return False


def ccl_built(verbose: bool = False) -> bool:
    return False
