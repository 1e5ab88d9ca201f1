# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files: the state's structure as msgpack, then its arrays as in memory, then a checksum.

The header records the commit: the lineage of the training, the number of commits, and the time. Files in format 1,
which recorded none of these, can still be read.

A file is written under a temporary name, flushed to disk and renamed, so that it is there whole or not at all. Reading
detects any later damage before anything is loaded. Only values that are not arrays, simple containers, numbers or texts
are pickled.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from horovod.common import serialization
from horovod.common.lineage import FIRST_FORMAT, LINEAGE_BYTES, CommitId

VERSION = 2
_MAGIC = b"HVDSTATE"
_COMMON = struct.Struct("<8sIIQQ")  # magic, version, zero, bytes of the structure, bytes of the arrays
_COMMIT = struct.Struct(f"<{LINEAGE_BYTES}sQd")  # lineage, number of commits, seconds since the epoch
_HEADER_BYTES = {1: _COMMON.size, 2: _COMMON.size + _COMMIT.size}
_DIGEST_BYTES = 32
_ALIGNMENT = 64
_PIECE_BYTES = 4 << 20
_ARRAY, _TUPLE, _ORDERED, _PICKLE, _INTEGER = range(1, 6)


class BadCheckpointError(Exception):
    """Error for a file that is no complete checkpoint of a known format: cut off, changed, or something else."""


@dataclass(frozen=True)
class Description:
    """Contents of a file's header.

    Attributes:
        commit: The commit that the file holds.
        time: When the file was written, in seconds since the epoch.
        version: The format of the file.

    A file in format 1 records neither commit nor time: the number in its name is taken as its commit, and the time of
    its last change as its time.
    """

    commit: CommitId
    time: float
    version: int


def write(path: Path, content: Any, commit: CommitId) -> None:
    """Write a checkpoint to `path` atomically and durably. After an OSError, the old file is still there."""
    folder = path.parent
    temporary = folder / temporary_name(path)
    try:
        with open(temporary, "wb", buffering=0) as file:
            for piece in _pieces(content, commit):
                _write_all(file.fileno(), piece)
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)  # makes the new name durable too
    finally:
        os.close(descriptor)


def temporary_name(path: Path) -> str:
    return f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp"


def read(path: Path) -> Any:
    """Return the contents of a file. BadCheckpointError, before anything is decoded, if the file has changed."""
    data = bytearray(path.read_bytes())
    header = _Header.parse(data)
    header.check_size(len(data))
    body = memoryview(data)[:-_DIGEST_BYTES]
    if _checksum(body) != data[-_DIGEST_BYTES:]:
        raise BadCheckpointError(_CHANGED)
    arrays_at = header.size + header.structure_bytes
    return _Decoder(body[arrays_at:]).decode(body[header.size : arrays_at])


def describe(path: Path) -> Description:
    """Return what a file's header records, without reading the rest.

    Raise BadCheckpointError if it is not a checkpoint.
    """
    with open(path, "rb") as file:
        return _described(path, file.read(max(_HEADER_BYTES.values())))


def check(path: Path) -> Description:
    """Read a whole file without decoding it. Raise BadCheckpointError if it is not as it was written."""
    with open(path, "rb", buffering=0) as file:
        head = file.read(max(_HEADER_BYTES.values()))
        header = _Header.parse(head)
        size = os.fstat(file.fileno()).st_size
        header.check_size(size)
        digest, left = hashlib.blake2b(digest_size=_DIGEST_BYTES), size - _DIGEST_BYTES
        file.seek(0)
        while left and (piece := file.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
        if digest.digest() != file.read():
            raise BadCheckpointError(_CHANGED)
    return _described(path, head)


_CHANGED = "its checksum is wrong: its contents were changed"


@dataclass(frozen=True)
class _Header:
    """Header of a file; `size` is the length of the header itself in bytes."""

    version: int
    size: int
    structure_bytes: int
    array_bytes: int

    @classmethod
    def parse(cls, data: bytes | bytearray) -> _Header:
        if len(data) < _COMMON.size or data[: len(_MAGIC)] != _MAGIC:
            raise BadCheckpointError("it is not a checkpoint" if data else "it is empty")
        _, version, _, structure_bytes, array_bytes = _COMMON.unpack_from(data)
        if version not in _HEADER_BYTES:
            raise BadCheckpointError(
                f"it has format {version}, and this version of Horovod reads formats 1 to {VERSION}"
            )
        return cls(version, _HEADER_BYTES[version], structure_bytes, array_bytes)

    def check_size(self, found: int) -> None:
        whole = self.size + self.structure_bytes + self.array_bytes + _DIGEST_BYTES
        if found != whole:
            raise BadCheckpointError(f"it has {found} bytes instead of {whole}: it was cut off")


def _described(path: Path, data: bytes) -> Description:
    header = _Header.parse(data)
    if header.version == 1:
        number = re.search(r"\d+", path.name)
        return Description(CommitId(FIRST_FORMAT, int(number[0]) if number else 0), path.stat().st_mtime, 1)
    if len(data) < header.size:
        raise BadCheckpointError("it was cut off in its header")
    lineage, commits, written = _COMMIT.unpack_from(data, _COMMON.size)
    return Description(CommitId(lineage.hex(), commits), written, header.version)


def _checksum(body: memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def _pieces(content: Any, commit: CommitId) -> Iterator[memoryview | bytes]:
    """Yield the pieces of the file from beginning to end, without a second copy of all arrays."""
    encoder = _Encoder()
    structure = encoder.encode(content)
    total = encoder.total
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    header = _COMMON.pack(_MAGIC, VERSION, 0, len(structure), total)
    header += _COMMIT.pack(bytes.fromhex(commit.lineage), commit.commits, time.time())
    for piece in (header, structure, *encoder.arrays()):
        digest.update(piece)
        yield piece
    yield digest.digest()


def _write_all(descriptor: int, piece: memoryview | bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view[:_PIECE_BYTES]) :]


class _Encoder:
    def __init__(self) -> None:
        self._buffers: list[memoryview] = []
        self.total = 0
        self._synchronized = False

    def encode(self, content: Any) -> bytes:
        packed: bytes = msgpack.packb(self._plain(content), strict_types=True)
        return packed

    def arrays(self) -> Iterator[memoryview | bytes]:
        for buffer in self._buffers:
            yield buffer
            if padding := -buffer.nbytes % _ALIGNMENT:
                yield bytes(padding)

    def _plain(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, float, str, bytes):
            return value
        if kind is int:
            return value if -(1 << 63) <= value < 1 << 64 else msgpack.ExtType(_INTEGER, str(value).encode())
        if kind is list:
            return [self._plain(one) for one in value]
        if kind is tuple:
            return self._extension(_TUPLE, [self._plain(one) for one in value])
        if kind is dict:
            return {self._key(key): self._plain(one) for key, one in value.items()}
        if kind is OrderedDict:
            pairs = [[self._plain(key), self._plain(one)] for key, one in value.items()]
            return self._extension(_ORDERED, [pairs, self._plain(dict(getattr(value, "__dict__", {})))])
        array = self._as_array(value)
        return msgpack.ExtType(_PICKLE, serialization.dumps(value)) if array is None else array

    def _key(self, key: Any) -> Any:
        return key if type(key) in (str, int, bytes, bool) else self._plain(key)

    def _extension(self, code: int, value: Any) -> Any:
        return msgpack.ExtType(code, msgpack.packb(value, strict_types=True))

    def _as_array(self, value: Any) -> Any:
        torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
        if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
            if value.is_cuda and not self._synchronized:  # the GPU may still be computing the copy
                torch.cuda.synchronize(value.device)
                self._synchronized = True
            data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return self._described("torch", str(value.dtype).removeprefix("torch."), value.shape, data)
        if isinstance(value, np.ndarray) and type(value) is np.ndarray and not value.dtype.hasobject:
            return self._of_numpy("numpy", value)
        if isinstance(value, np.generic) and not value.dtype.hasobject and value.dtype.kind != "V":
            return self._of_numpy("scalar", np.asarray(value))
        if (
            jax is not None
            and isinstance(value, jax.Array)
            and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)
        ):
            return self._of_numpy("jax", np.asarray(value))
        return None

    def _of_numpy(self, kind: str, value: Any) -> Any:
        name = value.dtype.str if value.dtype.kind in "biufcSUmM" else value.dtype.name
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return self._described(kind, name, value.shape, data)

    def _described(self, kind: str, dtype: str, shape: Any, data: Any) -> Any:
        place = self.total
        self._buffers.append(memoryview(data))
        self.total += data.nbytes + -data.nbytes % _ALIGNMENT
        return self._extension(_ARRAY, [kind, dtype, list(shape), place, data.nbytes])


class _Decoder:
    def __init__(self, arrays: memoryview) -> None:
        self._arrays = arrays

    def decode(self, packed: memoryview | bytes) -> Any:
        return msgpack.unpackb(packed, ext_hook=self._extension, strict_map_key=False, use_list=True)

    def _extension(self, code: int, data: bytes) -> Any:
        if code == _ARRAY:
            return self._array(*msgpack.unpackb(data))
        if code == _TUPLE:
            return tuple(self.decode(data))
        if code == _ORDERED:
            pairs, attributes = self.decode(data)
            result: OrderedDict[Any, Any] = OrderedDict(pairs)
            result.__dict__.update(attributes)
            return result
        if code == _INTEGER:
            return int(data)
        if code == _PICKLE:
            return serialization.loads(data)
        raise BadCheckpointError(f"it holds a value of an unknown kind ({code})")

    def _array(self, kind: str, dtype: str, shape: list[int], place: int, nbytes: int) -> Any:
        data = self._arrays[place : place + nbytes]
        if kind == "torch":
            import torch

            flat = torch.frombuffer(data, dtype=torch.uint8) if nbytes else torch.empty(0, dtype=torch.uint8)
            return flat.view(getattr(torch, dtype)).reshape(shape).clone()
        try:
            known = np.dtype(dtype)
        except TypeError:
            import ml_dtypes  # defines bfloat16 and similar types

            known = np.dtype(getattr(ml_dtypes, dtype))
        array = np.frombuffer(data, np.uint8).view(known).reshape(shape).copy()
        if kind == "jax":
            import jax.numpy

            return jax.numpy.asarray(array)
        return array[()] if kind == "scalar" else array
