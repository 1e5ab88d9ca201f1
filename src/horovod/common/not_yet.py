# SPDX-License-Identifier: Apache-2.0
"""Names of Horovod that this version does not have. They can be imported, and raise an error with their name when used.

Their modules exist, so that imports and type checkers find them:

    class HorovodRunDriverClient(NotYet): ...
    run = function(__name__, "run")
    SOMETHING = value(__name__, "SOMETHING")
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from typing import Any, NoReturn

# Reasons by the beginning of the module's name. The first match counts.
_REASONS = {
    "horovod.spark": "Spark is not supported yet",
    "horovod.runner.elastic": "the elastic driver and its workers talk through the authenticated rendezvous",
    "horovod.runner.http": "ranks meet at an authenticated rendezvous, not at a key-value server over HTTP",
    "horovod.runner.mpi_run": "horovodrun --mpi starts jobs through mpirun",
    "horovod.runner.js_run": "horovodrun --jsrun starts jobs through jsrun",
    "horovod.runner": "this part of Horovod's launcher does not exist here; use horovodrun or horovod.run()",
}


# Packages without any working part.
_EMPTY = ("horovod.spark",)


def is_empty(package: str) -> bool:
    return package in _EMPTY


class _NoSuchPartError(NotImplementedError, AttributeError):
    """Error for an attribute of a missing part.

    It is an AttributeError, so that hasattr() returns False, and a NotImplementedError that explains the reason.
    """


def text_for(name: str) -> str:
    reason = next((why for prefix, why in _REASONS.items() if (name + ".").startswith(prefix + ".")), "")
    return f"{name} is not available in this version" + (f": {reason}" if reason else "")


class _Raises(ABCMeta):
    """Metaclass of classes that cannot be instantiated. Inheritance and isinstance() work."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(text_for(_name_of(cls)))

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):  # names that inspect, pickle and similar modules look up
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        raise _NoSuchPartError(text_for(f"{_name_of(cls)}.{name}"))


class NotYet(metaclass=_Raises):
    """Base of the classes that this version does not have."""

    # These methods are only for type checkers, because there are no instances.
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise _NoSuchPartError(text_for(f"{_name_of(type(self))}.{name}"))


def function(module: str, name: str) -> Callable[..., Any]:
    def raises(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(text_for(f"{module}.{name}"))

    raises.__module__, raises.__name__, raises.__qualname__ = module, name, name
    return raises


class _Value:
    """Constant that this version does not have."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{text_for(self._name)}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _NoSuchPartError(text_for(self._name))

    def _refuse(self, *_: object) -> NoReturn:
        raise NotImplementedError(text_for(self._name))


_OPERATIONS = (
    *("call", "eq", "ne", "lt", "gt", "le", "ge", "bool", "int", "float", "index", "str", "len", "iter", "getitem"),
    *("contains", "add", "mul", "truediv"),
)
for _operation in _OPERATIONS:
    setattr(_Value, f"__{_operation}__", _Value._refuse)


def value(module: str, name: str) -> Any:
    return _Value(f"{module}.{name}")


def _name_of(cls: type) -> str:
    """Return the name of the missing part.

    For a user's class, that is the class of this package that it inherits from.
    """
    ours = next((each for each in cls.__mro__ if each.__module__.startswith("horovod.")), cls)
    return f"{ours.__module__}.{ours.__qualname__}"
