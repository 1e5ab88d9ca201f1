# SPDX-License-Identifier: Apache-2.0
"""Secret of a job, and digests of messages with it."""

from __future__ import annotations

import hashlib
import hmac

from horovod.common.rendezvous.protocol import MAC_BYTES as DIGEST_LENGTH
from horovod.common.rendezvous.protocol import SECRET_BYTES as SECRET_LENGTH
from horovod.common.rendezvous.protocol import make_secret as make_secret_key
from horovod.common.topology import SECRET_VARIABLE as HOROVOD_SECRET_KEY

__all__ = [
    "DIGEST_LENGTH",
    "HOROVOD_SECRET_KEY",
    "SECRET_LENGTH",
    "check_digest",
    "compute_digest",
    "make_secret_key",
]


def compute_digest(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hashlib.sha256)


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    return hmac.compare_digest(compute_digest(key, message), digest)
