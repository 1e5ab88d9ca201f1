# SPDX-License-Identifier: Apache-2.0
"""The one audited place that imports cloudpickle: users' functions, arguments, results and objects.

`loads` runs whatever the bytes say. Call it only on bytes that came over an authenticated connection of this job.
"""

from __future__ import annotations

from typing import Any


def dumps(value: Any) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]  # late: a job that ships no function need not pay for it

    data: bytes = cloudpickle.dumps(value)
    return data


def loads(data: bytes) -> Any:
    import cloudpickle

    return cloudpickle.loads(data)
