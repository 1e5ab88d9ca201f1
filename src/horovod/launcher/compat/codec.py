# SPDX-License-Identifier: Apache-2.0
"""Objects as text. Decoding runs code that the text contains, so decode only trusted texts."""

from __future__ import annotations

import base64
from typing import Any

from horovod.common import serialization


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    encoded = base64.b64encode(serialization.dumps(obj))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    return serialization.loads(base64.b64decode(encoded, validate=True))
