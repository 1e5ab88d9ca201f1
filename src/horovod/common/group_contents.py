# SPDX-License-Identifier: Apache-2.0
"""Text that describes what a rank puts into a group of gradients. The engine compares these texts between ranks.

Ranks match their groups by name or by position in the program, so two ranks may mean different gradients: one has no
gradient for a variable, or they work on two models in different order. The text names the variables, and a checksum
covers what the text leaves out. See `Call.contents`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Length of the checksum at the end of each description; engine/bindings/tensorflow and engine/bindings/xla rely on it
# too.
CHECKSUM_DIGITS = 8
_MAX_SHOWN = 3
# Matches the numbers in names of Keras layers, because Keras counts layers in each process, and ranks may have made
# different layers before.
_NUMBER = re.compile(r"_\d+(?=[/.]|$)")
_UNSAFE = re.compile(r"[^\w ./,:;()\[\]=*+-]")


@dataclass(frozen=True, slots=True)
class GradientOf:
    """Gradient in a group: its variable, and its kind: "dense", "sparse" or "None"."""

    variable: str
    shape: str = ""
    kind: str = "dense"


def name_of_keras_variable(variable: Any) -> str:
    """Return the names of a variable and of its layer, such as dense/kernel.

    What Keras puts before these depends on how the model was made. A new model has sequential/dense/kernel where a
    model loaded from a file has dense/kernel, and perhaps only rank 0 has loaded one.
    """
    path = str(getattr(variable, "path", variable.name))
    return "/".join(path.split("/")[-2:])


def described(gradients: Sequence[GradientOf], remedy: str = "", part: str = "") -> str:
    """Return the description of these gradients, which ends in a checksum.

    Args:
        remedy: How the user replaces a gradient that is None by zeros.
        part: Text that names the group if these gradients are reduced in several groups.
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
    """Return a description that also covers how gradients are compressed, and by its checksum which ones.

    Args:
        contents: Result of `described`, or an empty text.
        method: Text of the method from `CompressionMethod.describe`.
        compressed: Positions of the gradients that are compressed.
    """
    begin = contents.rpartition("; checksum ")[0]
    checksum = zlib.crc32(f"{contents}\n{method}\n{list(compressed)}".encode())
    text = f"{begin + '; ' if begin else ''}compression={method}; checksum {checksum:0{CHECKSUM_DIGITS}x}"
    return _UNSAFE.sub("_", text)
