# SPDX-License-Identifier: Apache-2.0
"""The nanobind module: a thin face over libhvd's table of C functions (engine/include/hvd/engine.h)."""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

ABI_VERSION: int

def keep_threads_of_frameworks() -> None: ...

class OpKind(IntEnum):
    """What can be asked for (hvd_kind)."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5
    JOIN = 6
    ADD_PROCESS_SET = 7
    REMOVE_PROCESS_SET = 8

class ReduceOp(IntEnum):
    """How elements are combined (hvd_reduce_op): Horovod's numbers."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5

class DType(IntEnum):
    """Types of elements (hvd_dtype)."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BOOL = 9
    BFLOAT16 = 10
    FLOAT8_E4M3 = 11
    FLOAT8_E5M2 = 12
    UINT32 = 13
    UINT64 = 14

DTYPES: tuple[tuple[str, int, bool], ...]
"""By DType: what NumPy calls it, bytes of an element, whether it is floating."""

class EngineError(Exception):
    """args = (code, text, lost_rank).

    code as in hvd::Code: 2 invalid, 3 mismatch, 4 failed, 5 not implemented, 6 timeout.
    """

def default_settings() -> dict[str, int | bytes]:
    """What the engine does unless it is told otherwise, by the names of hvd/settings.h."""

class Output:
    """Memory that the engine allocated for a result, for arrays to be made over it."""

    @property
    def nbytes(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Region:
    """Memory of a device that the engine made for tensors. It is given back with this object."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class EngineCall:
    """The operation to perform, without its tensors.

    Args:
        kind: A value of OpKind.
        reduce_op: A value of ReduceOp.
        root: Rank whose tensor is broadcast.
        wire_dtype: DType (float16 or bfloat16) to which an allreduce of float32 is rounded while it travels. On one
            host it stays float32, unless the world is deterministic.
        will_wait: The calling thread waits next, so the engine wakes no other thread to drive the work.
        prompt: Launch without negotiation on the stream that `World.prompt_stream` reports. All ranks must make the
            same calls in the same order, and every tensor needs an output.
    """

    def __init__(
        self,
        kind: int,
        reduce_op: int = 1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        root: int = -1,
        wire_dtype: int = 0,
        will_wait: bool = False,
        prompt: bool = False,
    ) -> None: ...
    @property
    def kind(self) -> int: ...
    @property
    def reduce_op(self) -> int: ...
    @property
    def prescale(self) -> float: ...
    @property
    def postscale(self) -> float: ...
    @property
    def root(self) -> int: ...
    @property
    def wire_dtype(self) -> int: ...

class TensorLocation:
    """Where a tensor lies, and what its elements are.

    Args:
        input: Address to read from.
        output: Address to write to; 0 if the engine allocates the result.
        device: GPU of the addresses; -1 for host memory.
        stream: Address of the CUDA stream after which the engine orders its work.
    """

    device: int
    stream: int

    def __init__(
        self,
        dtype: int,
        shape: Sequence[int],
        input: int = 0,
        output: int = 0,
        *,
        device: int = -1,
        stream: int = 0,
    ) -> None: ...
    @property
    def dtype(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def input(self) -> int: ...
    @property
    def output(self) -> int: ...

class World:
    """One world: this process as one rank among `size`. Opens its listeners at once; `connect` starts the engine."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        host: str,
        listen_address: str,
        world_id: str,
        generation: int,
        secret: bytes,
        settings: Mapping[str, int | bytes],
    ) -> None:
        """`settings` holds values by the names of hvd/settings.h; missing ones keep the engine's default."""
    @property
    def address(self) -> int:
        """The world's hvd_world*, for other clients of the C API."""
    @property
    def tcp_port(self) -> int: ...
    @property
    def local_socket(self) -> str: ...
    def connect(self, peers: Sequence[tuple[int, str, str, int, str, str]], timeout_s: float) -> None:
        """peers: (rank, host, address, port, local_socket) of the whole world, ordered by rank."""
    def close(self, at_once: bool = False) -> None:
        """End it, once GPUs are done with what was launched; `at_once`: what they have not done is given up."""

    def fail(self, why: str) -> bool:
        """End it at once because this rank's program has failed: all operations fail with this text, on all ranks.

        False if it had ended before.
        """

    def shares_gpus(self, process_set: int) -> int:
        """Whether members of the set share GPUs, 1 or 0; -1 before their first tensors there."""
    def use_jobs(self) -> None:
        """Before connect, on all ranks or none: tensors travel by another library, by the jobs that next_job gives."""
    def next_job(self, timeout_s: float) -> tuple[Any, ...] | Literal[False] | None:
        """The fields of common.mpi_plane.Job; None if none came within the time, False if none will come any more."""
    def finish_job(self, id: int, error: str = "") -> None:
        """A job is done: its result goes to the callers. With an error the world ends."""
    def submit(
        self, process_set: int, name: str, call: EngineCall, tensor: TensorLocation, splits: Sequence[int] = ()
    ) -> int:
        """Start one operation and return its handle, which is above 0.

        Args:
            splits: Rows for each member, for an alltoall. With `call.prompt`, the rows from each member follow.
        """
    def submit_group(
        self,
        process_set: int,
        group: str,
        names: Sequence[str],
        call: EngineCall,
        tensors: Sequence[TensorLocation],
    ) -> int:
        """Start one operation on several tensors as one unit and return its handle."""
    def submit_many(
        self,
        process_set: int,
        names: Sequence[str],
        call: EngineCall,
        tensors: Sequence[TensorLocation],
        started: list[int],
    ) -> None:
        """Start one operation for each tensor and add the handles to `started`, also if a later one is refused."""
    def let_wait(self, device: int, stream: int) -> None:
        """Make a stream of the device wait for all operations on it that are done, which is when they are launched.

        EngineError if the world has ended: what they left on the device is then of no account.
        """
    def prompt_stream(self, device: int, kind: int, reduce_op: int, dtype: int) -> int:
        """Where `prompt` operations go; 0: there are none of this kind, -1: not known before one on the GPU is done."""
    def output_rows(self, handle: int, index: int) -> int:
        """Rows of an output that the engine allocated on a device."""
    def copy_output(self, handle: int, index: int, to: int, stream: int) -> None:
        """Put a copy of it to the address `to` on the stream. Once only."""
    def finish_all(self, handles: Sequence[int]) -> None:
        """Waits for all of them and releases them, then raises the first failure."""
    def poll(self, handle: int) -> bool: ...
    def wait(self, handle: int, timeout_s: float = -1.0) -> bool:
        """Blocks with the GIL released, looks for signals every 50 ms, raises EngineError if the work failed.

        False if the work is not done after `timeout_s` seconds (negative: no limit).
        """
    def finish(self, handle: int) -> None:
        """Wait and release in one call: released also if the operation failed, not if a signal broke the wait."""
    def take_output(self, handle: int, index: int = 0) -> tuple[Output, int]:
        """(bytes, rows) of an output that the engine allocated; the array owns the memory. Once only."""
    def received_splits(self, handle: int, members: int) -> list[int]: ...
    def value(self, handle: int) -> int: ...
    def release(self, handle: int) -> None: ...
    def send(self, peer: int, tag: int, data: int, size: int, device: int = -1, stream: int = 0) -> int:
        """On a GPU: after what is on the stream by now. When it is done, so is the GPU: no stream has to wait."""

    def recv(self, peer: int, tag: int, data: int, size: int, device: int = -1, stream: int = 0) -> int: ...
    def allocate(self, nbytes: int) -> tuple[npt.NDArray[np.uint8], bool]:
        """Memory for tensors, on a page boundary, and whether local peers reach it. Lives while anybody holds it."""
    def allocate_region(self, process_set: int, device: int, nbytes: int) -> Region | None:
        """Memory of the device in which in-place allreduces of the set's members copy nothing; its contents are any.

        None: the members do not share the device, or are not known to before their first operations on it.
        """
    def describe(self) -> str: ...
    def start_timeline(self, path: bytes, mark_cycles: bool = False) -> None:
        """Write what this rank does to a file as a Chrome trace; EngineError if the file cannot be written."""
    def stop_timeline(self) -> None: ...
    def show(self, name: str, began_ns: int, ended_ns: int) -> None:
        """Put what the program did itself into the timeline, if one is written: times of time.monotonic_ns."""
    def use_tuning(self, fusion_threshold: int, cycle_time_us: int, chunk_bytes: int) -> None:
        """Before connect, alike on all ranks: what an autotuner found in an earlier world, instead of tuning again."""
    def tell_stack(self, function: Callable[[], str]) -> None:
        """Before connect: who says what this program is doing, when other ranks wait for it. Kept for ever."""
    def tell_block(self, function: Callable[[int], str]) -> None:
        """Before connect: who tells about a thread that waits, by its ident. Kept for ever.

        The text is '1' if no other thread of the program could call, else '0', then where in the program it waits.
        """

class PlainArrays:
    """A framework's arrays as native calls read and make them."""

class ArrayReader(PlainArrays):
    """Reads and makes NumPy arrays by the layout of NumPy's public struct; the caller has seen that it is right."""

    def __init__(self, array_type: type, dtypes: Mapping[np.dtype[Any], int], table: object) -> None:
        """`table`: NumPy's _ARRAY_API."""
    def read(self, array: object) -> tuple[int, tuple[int, ...], int] | None:
        """Address, shape and dtype id; None for what needs a closer look."""
    def empty_like(self, array: object) -> npt.NDArray[Any] | None: ...

class Numbering:
    """Names for operations that have none: kind and number, which begins again at 1 with each restart."""

    def next(self, operation: str) -> str: ...
    def restart(self) -> None: ...

class Member:
    """A process set that this rank is a member of, for native calls."""

    def __init__(self, world: World, set_id: int, index: int, ranks: Sequence[int], numbering: Numbering) -> None: ...

class PlainHandles:
    """The numbers that users hold for operations under way, and those operations that ArrayCalls has started."""

    def next(self) -> int:
        """A number for an operation that somebody else keeps."""
    def poll(self, number: object) -> Any:
        """Whether an operation is done; NotImplemented for a number that is none of ours."""
    def synchronize(self, number: object) -> Any:
        """Wait for an operation and return its result; NotImplemented for a number that is none of ours."""
    def clear(self) -> None:
        """Forget everything and number from 1 again. Only after the engine has stopped."""

class ArrayCalls:
    """Collectives on plain arrays, each in one call.

    They give the result if `wait`, else a handle; and None for whatever needs a closer look: arguments of another kind,
    another layout, mistakes.
    """

    def __init__(
        self,
        arrays: PlainArrays | None,
        handles: PlainHandles,
        translate: Callable[[EngineError, str], Exception],
    ) -> None: ...
    def allreduce(
        self,
        member: Member | None,
        tensor: object,
        in_place: bool,
        wait: bool,
        name: object,
        average: object,
        op: object,
        prescale: object,
        postscale: object,
        /,
    ) -> Any: ...
    def reducescatter(
        self,
        member: Member | None,
        tensor: object,
        wait: bool,
        name: object,
        op: object,
        prescale: object,
        postscale: object,
        /,
    ) -> Any: ...
    def broadcast(
        self, member: Member | None, tensor: object, in_place: bool, wait: bool, root: object, name: object, /
    ) -> Any: ...
    def allgather(self, member: Member | None, tensor: object, wait: bool, name: object, /) -> Any: ...
    def alltoall(self, member: Member | None, tensor: object, wait: bool, splits: object, name: object, /) -> Any:
        """With the received splits if `splits` were given, or if it does not wait."""

class Arrivals:
    """Numbers of what has arrived, in order, with cheap hooks that tell of arrivals. True if there are any."""

    def __init__(self, limit: int, notify: Callable[[], object]) -> None:
        """notify() is called by the first arrival, and by those with which the bytes together come to the limit."""
    def hook(
        self,
        number: int,
        nbytes: int,
        homes: GradientHomes | None,
        stream_of: Callable[[int], int] | None = None,
        device: int = -1,
    ) -> Callable[[object], None]:
        """A hook that tells of `number`, whose size is `nbytes`, after the gradient has moved to its home; and on which
        stream of the device it came.
        """
    def take(self) -> list[int]: ...
    def take_streams(self) -> list[tuple[int, int]]:
        """{device, stream} of what has arrived since this was called last, each once."""
    @property
    def full(self) -> bool: ...
    def __bool__(self) -> bool: ...

class TensorReader:
    """Reads torch's tensors through DLPack's table of functions, or by their attributes where there is none."""

    def __init__(self, tensor_type: type, dtypes: Mapping[Any, int], strided: object, table: object) -> None: ...
    def read(self, tensor: object) -> tuple[int, tuple[int, ...], int] | None:
        """Address, shape and dtype id; None for what needs a closer look."""

class TensorMaker:
    """Makes torch's tensors over the engine's memory, by DLPack's table of functions, or by capsules."""

    def __init__(self, table: object, from_dlpack: Callable[[object], object]) -> None: ...

class Onlookers:
    """Tells a gradient that nobody but its parameter knows from others."""

    def __init__(self, storage_count: Callable[[int], int]) -> None: ...
    def learn(self, parameter: Any) -> None:
        """Take the gradient of this parameter as an example; to be called in the hook that follows accumulation."""

class GradientHomes:
    """Shared memory into which hooks move gradients that autograd has just made."""

    def __init__(
        self, reader: TensorReader, maker: TensorMaker, onlookers: Onlookers, dtypes: Sequence[int], least: int
    ) -> None:
        """`dtypes`: of gradients that may move; `least`: bytes from which on they do."""
    def move_to(self, world: World) -> None:
        """Where homes are from now on."""

class PlainTensors(PlainArrays):
    """torch's tensors for native calls."""

    def __init__(
        self,
        reader: TensorReader,
        maker: TensorMaker,
        dtypes: Mapping[Any, int],
        is_grad_enabled: Callable[[], bool],
    ) -> None: ...

def moved_text(name: str) -> str:
    """What is said of a tensor whose memory was taken from an operation under way."""

class Exchange:
    """A small message that this rank has sent; the answer is the greatest of all ranks' bytes, each for itself."""

    def __init__(self, member: Member, name: str, message: bytes) -> None: ...
    def finish(self) -> bytes:
        """Wait for the other ranks, and return the answer. Once only."""
    @staticmethod
    def wait_for_any(exchanges: Sequence[Exchange]) -> int:
        """Wait until one of them is over, and return its place in the list; at once if there is only one."""

def replaced_text(name: str) -> str:
    """Return the error about a gradient that was replaced while it was being reduced."""

class GradientTable:
    """The gradients of one optimizer by their numbers, from 0 on, and how far each is in its round of passes."""

    def __init__(
        self, reader: TensorReader, dtypes: Sequence[int], op: int, prescale: float, postscale: float, wire: int
    ) -> None:
        """`dtypes`: those that travel without a compressor's help; `wire`: what the engine carries float32 as."""
    def add(self, name: str, parameter: object, small: bool) -> None:
        """One more. `name` is that of its allreduce; `small`: it may be bundled with others."""
    def rename(self, number: int, name: str) -> None:
        """Give its allreduce another name. It must not be in flight."""
    def set_place(self, number: int, place: object) -> None:
        """The tensor that a gradient has to be; any other one is left to the caller."""
    def leave_to_caller(self, number: int) -> None:
        """start() gives this number back."""
    def set_sparse(self, number: int, sparse: bool) -> None:
        """What the gradients of this number are."""
    def restart(self, passes: int) -> None:
        """A new round, of this many passes, for all."""
    def count_down(self, numbers: Sequence[int]) -> tuple[list[int], int | None]:
        """One pass less for each. Those with none left; and the first that had none before, where this ends."""
    def standings(self) -> bytes:
        """How far each is: the standings of horovod.torch.gradients.rounds."""
    def agree(self, wanted: bytes) -> list[int]:
        """All ranks reduce those that `wanted` has a byte other than 0 for. What of it has not begun here."""
    def in_flight(self, numbers: Sequence[int]) -> bool:
        """Whether all of them have begun and none has ended."""
    def make_bundle(self, numbers: Sequence[int]) -> int:
        """Bundle the small ones of those for start(). Its key, the same on ranks that bundle the same; 0: none."""
    def unpack(self) -> None:
        """The bundle has arrived: put what it brought into its gradients."""
    @property
    def bundles(self) -> int:
        """How many have been sent."""
    def postpone(self, numbers: Sequence[int]) -> None:
        """These are due, and begin later: a further pass is refused."""
    def split_small(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Those that may be bundled, and the others."""
    def start(
        self,
        numbers: Sequence[int],
        member: Member,
        will_wait: bool,
        sent: list[int],
        grads: list[Any],
        bundle: str | None,
    ) -> tuple[int, list[int]]:
        """Begin allreduces in place of those that are plain, and add them to the lists; the bundle under this name.

        One handle for them, 0 if there are none; and the numbers of the others.
        """
    def land(self, numbers: list[int], grads: list[Any]) -> None:
        """These were reduced; a further pass is refused while their parameters have the same gradients."""

# The codecs: functions on addresses (0: none) and counts, without the GIL. horovod.common.codecs checks arguments.

def codec_flavour() -> str:
    """Return the instruction set that the codecs use, such as "avx2"; results are the same with all of them."""

def codec_is_finite(values: int, count: int) -> bool: ...
def codec_int8_bytes(count: int, block: int) -> int: ...
def codec_int8_encode(values: int, residual: int, left: int, count: int, block: int, wire: int) -> None:
    """Encode values + residual; write what is lost by that to `left`, which may be one of the two."""

def codec_int8_decode(wire: int, count: int, block: int, factor: float, out: int, accumulate: bool) -> None:
    """Write factor * value to `out`, or add it."""

def codec_int8_decode_sum(wires: Sequence[int], count: int, block: int, factor: float, out: int) -> None:
    """Write factor * (first + second + ...) to `out`."""

def codec_onebit_bytes(count: int) -> int: ...
def codec_onebit_encode(values: int, residual: int, left: int, count: int, wire: int) -> None:
    """Encode values + residual; write what is lost by that to `left`, which may be one of the two."""

def codec_onebit_decode(wire: int, count: int, factor: float, out: int, accumulate: bool) -> None:
    """Write factor * value to `out`, or add it."""

def codec_onebit_decode_sum(wires: Sequence[int], count: int, factor: float, out: int) -> None:
    """Write factor * (first + second + ...) to `out`."""

def codec_topk_pairs(k: int) -> int:
    """Return the most pairs that a message has when k are wanted."""

def codec_topk_encode(values: int, residual: int, left: int, count: int, k: int, capacity: int, wire: int) -> int:
    """Encode about k values of values + residual as at most `capacity` pairs. Return the number of pairs.

    `left`, which may be one of the two, receives values + residual with zeros for what is sent.
    """

def codec_topk_decode(wire: int, bytes: int, count: int, factor: float, out: int, accumulate: bool) -> None:
    """Add factor * value at each index, to zeros unless `accumulate`; ValueError for a message that is not valid."""
