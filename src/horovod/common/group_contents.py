# SPDX-License-Identifier: Apache-2.0
"""What a rank puts into a group of gradients, in words. The engine compares these between ranks (`Call.contents`).

Ranks find each other's group by its name or by its place in the program, so two ranks may mean different gradients: one
has no gradient for a variable, or they work on two models in different order. The words name the variables, and a
checksum covers what is left out.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CHECKSUM_DIGITS = 8  # at the end of each description; engine/bindings/tensorflow and engine/bindings/xla know it too
_MAX_SHOWN = 3
# Keras numbers the layers of a process, and ranks may have made different ones before.
_NUMBER = re.compile(r"_\d+(?=[/.]|$)")
_UNSAFE = re.compile(r"[^\w ./,:;()\[\]=*+-]")


@dataclass(frozen=True, slots=True)
class GradientOf:
    """The variable of a gradient, and of what kind the gradient is: "dense", "sparse" or "None"."""

    variable: str
    shape: str = ""
    kind: str = "dense"


def name_of_keras_variable(variable: Any) -> str:
    """Return the names of a variable and of its layer: dense/kernel.

    What Keras puts before these depends on how the model was made: sequential/dense/kernel in a new one is dense/kernel
    in one that was loaded from a file, which rank 0 alone may have done.
    """
    path = str(getattr(variable, "path", variable.name))
    return "/".join(path.split("/")[-2:])


def described(gradients: Sequence[GradientOf], remedy: str = "", part: str = "") -> str:
    """Return the description of these gradients, which ends in a checksum.

    Args:
        remedy: how the user makes zeros of a gradient that is None.
        part: which of several groups it is that these gradients are reduced in.
    """
    names = [_NUMBER.sub("", gradient.variable.partition(":")[0]) for gradient in gradients]
    everything = "\n".join(
        f"{name} {gradient.shape} {gradient.kind}" for name, gradient in zip(names, gradients, strict=True)
    )
    span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    text = f"gradients of {len(names)} variable{'s'[: len(names) > 1]}, {span}"
    for kind in ("sparse", "None"):
        places = [place for place, gradient in enumerate(gradients) if gradient.kind == kind]
        if places:
            shown = ", ".join(f"{names[place]} (number {place + 1})" for place in places[:_MAX_SHOWN])
            more = f" and {len(places) - _MAX_SHOWN} more" if len(places) > _MAX_SHOWN else ""
            text += f"; {kind} for {shown}{more}"
            text += f", {remedy}" if kind == "None" and remedy else ""
    return _UNSAFE.sub("_", f"{text}{part}; checksum {zlib.crc32((everything + part).encode()):0{CHECKSUM_DIGITS}x}")


def with_compression(contents: str, method: str, compressed: Sequence[int]) -> str:
    """Return a description that also holds how gradients are compressed; its checksum covers which ones are.

    Args:
        contents: What `described` has returned, or empty.
        method: The text of the method, as `CompressionMethod.describe` returns it.
        compressed: The places of the gradients that are compressed.
    """
    begin = contents.rpartition("; checksum ")[0]
    checksum = zlib.crc32(f"{contents}\n{method}\n{list(compressed)}".encode())
    text = f"{begin + '; ' if begin else ''}compression={method}; checksum {checksum:0{CHECKSUM_DIGITS}x}"
    return _UNSAFE.sub("_", text)
