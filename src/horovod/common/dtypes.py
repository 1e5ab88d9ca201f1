# SPDX-License-Identifier: Apache-2.0
"""The engine's element types (hvd::DType) and what NumPy calls them."""

from __future__ import annotations

from typing import Any

import numpy as np

# Ids 0-9 are Horovod's own; bfloat16 and the float8 types exist in NumPy only through the ml_dtypes package, which
# is never imported here: whoever holds such an array has imported it.
ID_BY_NAME = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bool": 9,
    "bfloat16": 10,
    "float8_e4m3fn": 11,
    "float8_e5m2": 12,
    "uint32": 13,
    "uint64": 14,
}
# Bytes of one element, by id.
ITEM_BYTES = (1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2, 1, 1, 4, 8)
NAME_BY_ID = {number: name for name, number in ID_BY_NAME.items()}
UINT8 = ID_BY_NAME["uint8"]
BOOL = ID_BY_NAME["bool"]
FLOAT32 = ID_BY_NAME["float32"]
AS_IT_IS = 0  # in place of the type that an allreduce travels as: its own
FLOATING = frozenset(number for name, number in ID_BY_NAME.items() if "float" in name)


class _IdByDType(dict["np.dtype[Any]", int]):
    """A plain dict where it is hot; a dtype that it has not met is looked up by name, or refused."""

    def __missing__(self, dtype: np.dtype[Any]) -> int:
        if not dtype.isnative:
            native = "array.astype(array.dtype.newbyteorder('='))"
            raise ValueError(f"An array of dtype {dtype} is not in native byte order; pass {native}")
        number = ID_BY_NAME.get(dtype.name)
        if number is None:
            raise ValueError(f"dtype {dtype} is not supported; the supported ones are {', '.join(ID_BY_NAME)}")
        self[dtype] = number
        return number


ID_BY_DTYPE = _IdByDType()
