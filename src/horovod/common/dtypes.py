# SPDX-License-Identifier: Apache-2.0
"""The engine's element types and their NumPy names."""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod._engine import DTYPES, DType

# NumPy has bfloat16 and the float8 types only through the ml_dtypes package. It is never imported here, because code
# that has such an array has imported it.
ID_BY_NAME = {name: number for number, (name, _, _) in enumerate(DTYPES)}
NAME_BY_ID = {number: name for name, number in ID_BY_NAME.items()}
ITEM_BYTES = tuple(size for _, size, _ in DTYPES)  # bytes of one element, by id
FLOATING = frozenset(number for number, (_, _, is_floating) in enumerate(DTYPES) if is_floating)
UINT8, BOOL, FLOAT32 = map(int, (DType.UINT8, DType.BOOL, DType.FLOAT32))
AS_IT_IS = 0  # value of Call.wire that leaves the values in the tensor's own type


class _IdByDType(dict["np.dtype[Any]", int]):
    """Dict that looks up a dtype by its name when it sees it for the first time, and then is as fast as any dict."""

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
