# SPDX-License-Identifier: Apache-2.0
"""The nanobind module: a thin layer over libhvd's table of C functions (engine/include/hvd/engine.h)."""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

ABI_VERSION: int

def keep_threads_of_frameworks() -> None: ...

class OpKind(IntEnum):
    """Kinds of operations (hvd_kind)."""

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
    """Operations that combine elements (hvd_reduce_op), with Horovod's numbers."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5

class DType(IntEnum):
    """Element types (hvd_dtype)."""

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
    """Error of the engine, with args = (code, text, lost_rank).

    The codes are those of hvd::Code: 2 invalid, 3 mismatch, 4 failed, 5 not implemented, 6 timeout.
    """

def default_settings() -> dict[str, int | bytes]:
    """Return the engine's default settings, by the names of hvd/settings.h."""

class Output:
    """Memory that the engine allocated for a result. It supports the buffer protocol, so that arrays can use it."""

    @property
    def nbytes(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Region:
    """Memory of a device that the engine allocated for tensors. It is freed with this object."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class EngineCall:
    """An operation to perform, without its tensors.

    Args:
        kind: A value of OpKind.
        reduce_op: A value of ReduceOp.
        root: Rank whose tensor is broadcast.
        wire_dtype: DType (float16 or bfloat16) to which an allreduce of float32 is rounded while it travels. On one
            host it stays float32, unless the world is deterministic.
        will_wait: True if the calling thread waits next, so that the engine wakes no other thread to drive the work.
        prompt: True to launch without negotiation on the stream that `World.prompt_stream` reports. All ranks must make
            equal calls in equal order, and every tensor needs an output.
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
    """Addresses and element type of a tensor.

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
    """One world, in which this process is one of `size` ranks.

    The constructor opens the listeners, and `connect` starts the engine.
    """

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
        """Open the listeners.

        Args:
            settings: Values by the names of hvd/settings.h. Other settings keep their defaults.
        """
    @property
    def address(self) -> int:
        """The world's hvd_world*, for other clients of the C API."""
    @property
    def tcp_port(self) -> int: ...
    @property
    def local_socket(self) -> str: ...
    def connect(self, peers: Sequence[tuple[int, str, str, int, str, str]], timeout_s: float) -> None:
        """Connect to all ranks.

        Args:
            peers: (rank, host, address, port, local_socket, machine) of each rank, in rank order.
        """
    def close(self, at_once: bool = False) -> None:
        """End the world once GPUs have finished the launched work. With `at_once`, give up unfinished work of GPUs."""

    def fail(self, why: str) -> bool:
        """End the world at once because this rank's program has failed.

        All operations on all ranks fail with this text. Return False if the world had ended before.
        """

    def shares_gpus(self, process_set: int) -> int:
        """Return 1 if members of the set share GPUs, else 0; -1 before their first tensors on GPUs."""
    def use_jobs(self) -> None:
        """Let another library move tensors, which gets its work from next_job.

        Call this before connect, on all ranks or on none.
        """
    def next_job(self, timeout_s: float) -> tuple[Any, ...] | Literal[False] | None:
        """Return the fields of the next common.mpi_plane.Job.

        Return None if no job came within the time, and False if no more jobs will come.
        """
    def finish_job(self, id: int, error: str = "") -> None:
        """Report that a job is done, so that callers get its result. With an error, the world ends."""
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
        """Start one operation for each tensor and add the handles to `started`.

        If an operation is refused, `started` has the handles of those before it.
        """
    def let_wait(self, device: int, stream: int) -> None:
        """Make a stream of the device wait for all operations that are done: these are launched, but may still run.

        Raise EngineError if the world has ended because of a lost rank; the results on the device are then undefined.
        """
    def prompt_stream(self, device: int, kind: int, reduce_op: int, dtype: int) -> int:
        """Return the stream of operations with `prompt` of this kind.

        0 if such operations always need negotiation; -1 if that is unknown until an operation on the GPU is done.
        """
    def output_rows(self, handle: int, index: int) -> int:
        """Return the rows of an output that the engine allocated on a device."""
    def copy_output(self, handle: int, index: int, to: int, stream: int) -> None:
        """Copy an output that the engine allocated on a device to the address `to`, on the stream.

        Call this only once for each output.
        """
    def finish_all(self, handles: Sequence[int]) -> None:
        """Wait for all operations and release them, then raise the first failure."""
    def poll(self, handle: int) -> bool: ...
    def wait(self, handle: int, timeout_s: float = -1.0) -> bool:
        """Wait without the GIL, and check for signals every 50 ms. Raise EngineError if the operation failed.

        Return False if it is not done after `timeout_s` seconds (negative: no limit).
        """
    def finish(self, handle: int) -> None:
        """Wait for an operation and release it.

        A failed operation is released too. An operation is not released if a signal broke the wait.
        """
    def take_output(self, handle: int, index: int = 0) -> tuple[Output, int]:
        """Return memory and rows of an output that the engine allocated.

        Call this only once for each output, because the memory then belongs to the caller.
        """
    def received_splits(self, handle: int, members: int) -> list[int]: ...
    def value(self, handle: int) -> int: ...
    def release(self, handle: int) -> None: ...
    def send(self, peer: int, tag: int, data: int, size: int, device: int = -1, stream: int = 0) -> int:
        """Send data. On a GPU, the data are read after the work that is on the stream now.

        When the operation is done, the GPU is done too, so no stream has to wait.
        """

    def recv(self, peer: int, tag: int, data: int, size: int, device: int = -1, stream: int = 0) -> int: ...
    def allocate(self, nbytes: int) -> tuple[npt.NDArray[np.uint8], bool]:
        """Return memory for tensors on a page boundary, and True if ranks on this host can access it.

        The memory is kept as long as any object refers to the array.
        """
    def allocate_region(self, process_set: int, device: int, nbytes: int) -> Region | None:
        """Return memory of a device in which in-place allreduces of the set's members copy nothing. It is not zeroed.

        Return None if the members do not share the device, or if that is unknown before their first operations on it.
        """
    def describe(self) -> str: ...
    def start_timeline(self, path: bytes, mark_cycles: bool = False) -> None:
        """Write this rank's events to a file as a Chrome trace. Raise EngineError if the file cannot be written."""
    def stop_timeline(self) -> None: ...
    def show(self, name: str, began_ns: int, ended_ns: int) -> None:
        """Add an event of the program itself to the timeline, if one is written. Times are from time.monotonic_ns."""
    def use_tuning(self, fusion_threshold: int, cycle_time_us: int, chunk_bytes: int) -> None:
        """Use values that an autotuner found in an earlier world, instead of tuning again.

        Call this before connect, with equal values on all ranks.
        """
    def tell_stack(self, function: Callable[[], str]) -> None:
        """Set the function that returns the program's stack, which the engine sends when other ranks wait for this one.

        Call this before connect. The function is kept until the process ends.
        """
    def tell_block(self, function: Callable[[int], str]) -> None:
        """Set the function that describes a waiting thread, given the thread's ident. See horovod.common.waits.told.

        Call this before connect. The function is kept until the process ends.
        """

class PlainArrays:
    """Reader and maker of a framework's arrays for native calls."""

class ArrayReader(PlainArrays):
    """Reader and maker of NumPy arrays by the layout of NumPy's public struct. The caller has tested the layout."""

    def __init__(self, array_type: type, dtypes: Mapping[np.dtype[Any], int], table: object) -> None:
        """Create a reader; `table` is NumPy's _ARRAY_API."""
    def read(self, array: object) -> tuple[int, tuple[int, ...], int] | None:
        """Return address, shape and dtype id; None for an array that Python code must check."""
    def empty_like(self, array: object) -> npt.NDArray[Any] | None: ...

class Numbering:
    """Names for unnamed operations: kind and number. Numbers begin at 1, also after each restart."""

    def next(self, operation: str) -> str: ...
    def restart(self) -> None: ...

class Member:
    """A process set that this rank is a member of, for native calls."""

    def __init__(self, world: World, set_id: int, index: int, ranks: Sequence[int], numbering: Numbering) -> None: ...

class PlainHandles:
    """Numbers that users get for operations in flight, and the operations that ArrayCalls has started."""

    def next(self) -> int:
        """Return a number for an operation that another object keeps."""
    def poll(self, number: object) -> Any:
        """Return True if an operation is done; NotImplemented for a number of another object's operation."""
    def synchronize(self, number: object) -> Any:
        """Wait for an operation and return its result; NotImplemented for a number of another object's operation."""
    def clear(self) -> None:
        """Forget all operations and number from 1 again. Call this only after the engine has stopped."""

class ArrayCalls:
    """Collectives of common arrays, each in one native call.

    They return the result if `wait` is True, else a handle. They return None for everything that Python code must
    check: other kinds of arguments, other layouts, mistakes.
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
        """Return the output, or (output, received splits) if `splits` were given.

        Without `wait`, the result of the handle is always (output, received splits).
        """

class Arrivals:
    """Numbers of arrived items, in order, with cheap hooks that record arrivals. bool() is True if there are any."""

    def __init__(self, limit: int, notify: Callable[[], object]) -> None:
        """Create the list.

        Args:
            limit: Number of bytes at which `full` becomes True.
            notify: Called at the first arrival, and at each arrival when all bytes together have reached the limit.
        """
    def hook(
        self,
        number: int,
        nbytes: int,
        homes: GradientHomes | None,
        stream_of: Callable[[int], int] | None = None,
        device: int = -1,
    ) -> Callable[[object], None]:
        """Return a hook for a parameter that moves its gradient to shared memory, then records `number`.

        Args:
            nbytes: Size of the gradient.
            homes: Shared memory for gradients; None to move nothing.
            stream_of: Function that returns the current stream of a device, which is recorded too.
        """
    def take(self) -> list[int]: ...
    def take_streams(self) -> list[tuple[int, int]]:
        """Return (device, stream) of what has arrived since the last call, each pair once."""
    @property
    def full(self) -> bool: ...
    def __bool__(self) -> bool: ...

class TensorReader:
    """Reader of torch's tensors by DLPack's table of functions, or by their attributes if there is no table."""

    def __init__(self, tensor_type: type, dtypes: Mapping[Any, int], strided: object, table: object) -> None: ...
    def read(self, tensor: object) -> tuple[int, tuple[int, ...], int] | None:
        """Return address, shape and dtype id; None for a tensor that Python code must check."""

class TensorMaker:
    """Maker of torch's tensors over the engine's memory, by DLPack's table of functions or by capsules."""

    def __init__(self, table: object, from_dlpack: Callable[[object], object]) -> None: ...

class Onlookers:
    """Detector of gradients to which only their parameter refers."""

    def __init__(self, storage_count: Callable[[int], int]) -> None: ...
    def learn(self, parameter: Any) -> None:
        """Take this parameter's gradient as the example of such a gradient. Call from the post-accumulate-grad hook."""

class GradientHomes:
    """Shared memory into which hooks move gradients that autograd has just made."""

    def __init__(
        self, reader: TensorReader, maker: TensorMaker, onlookers: Onlookers, dtypes: Sequence[int], least: int
    ) -> None:
        """Create an empty table.

        Args:
            dtypes: Dtypes of gradients that may move.
            least: Size in bytes from which on gradients move.
        """
    def move_to(self, world: World) -> None:
        """Use the shared memory of this world from now on."""

class PlainTensors(PlainArrays):
    """Reader and maker of torch's tensors for native calls."""

    def __init__(
        self,
        reader: TensorReader,
        maker: TensorMaker,
        dtypes: Mapping[Any, int],
        is_grad_enabled: Callable[[], bool],
    ) -> None: ...

def moved_text(name: str) -> str:
    """Return the error about a tensor whose memory has moved while an operation was using it."""

class Exchange:
    """A small message that this rank has sent. The answer has, for each byte, the maximum of all ranks' bytes."""

    def __init__(self, member: Member, name: str, message: bytes) -> None: ...
    def finish(self) -> bytes:
        """Wait for the other ranks and return the answer. Call this only once."""
    @staticmethod
    def wait_for_any(exchanges: Sequence[Exchange]) -> int:
        """Wait until one of the exchanges is over and return its index. Return at once if there is only one."""

def replaced_text(name: str) -> str:
    """Return the error about a gradient that was replaced while it was being reduced."""

class GradientTable:
    """Gradients of one optimizer, by numbers from 0, and the state of each in its round of backward passes."""

    def __init__(
        self, reader: TensorReader, dtypes: Sequence[int], op: int, prescale: float, postscale: float, wire: int
    ) -> None:
        """Create an empty table.

        Args:
            dtypes: Dtypes that are sent without a compressor.
            wire: Dtype in which the engine sends float32.
        """
    def add(self, name: str, parameter: object, small: bool) -> None:
        """Add a parameter.

        Args:
            name: Name of its gradient's allreduce.
            small: True if the gradient may be bundled with others.
        """
    def rename(self, number: int, name: str) -> None:
        """Give the allreduce of a gradient another name. It must not be in flight."""
    def set_place(self, number: int, place: object) -> None:
        """Set the tensor that the gradient must be. `start` returns the number if the gradient is another tensor."""
    def leave_to_caller(self, number: int) -> None:
        """Let `start` always return this number, because the caller reduces the gradient itself."""
    def set_sparse(self, number: int, sparse: bool) -> None:
        """Record whether the gradients of this number are sparse."""
    def restart(self, passes: int) -> None:
        """Begin a new round of this many backward passes for all gradients."""
    def count_down(self, numbers: Sequence[int]) -> tuple[list[int], int | None]:
        """Count one pass less for each gradient.

        Return the gradients with no passes left, and the first gradient for which a further pass is refused. Counting
        stops there.
        """
    def standings(self) -> bytes:
        """Return the state of each gradient as a byte: the standings of horovod.torch.gradients.rounds."""
    def agree(self, wanted: bytes) -> list[int]:
        """Mark as done what all ranks reduce, which is each gradient with a nonzero byte in `wanted`.

        Return those whose reduction has not begun here.
        """
    def in_flight(self, numbers: Sequence[int]) -> bool:
        """Return True if the reductions of all these gradients have begun and none has ended."""
    def make_bundle(self, numbers: Sequence[int]) -> int:
        """Bundle the small ones of these gradients for `start`.

        Return a key that is equal on ranks with equal bundles; 0 for no bundle.
        """
    def unpack(self) -> None:
        """Copy the reduced bundle into its gradients."""
    @property
    def bundles(self) -> int:
        """The number of bundles that were sent."""
    def postpone(self, numbers: Sequence[int]) -> None:
        """Mark gradients as due although their reductions begin later, so that a further pass is refused."""
    def split_small(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the gradients that may be bundled, and the others."""
    def start(
        self,
        numbers: Sequence[int],
        member: Member,
        will_wait: bool,
        sent: list[int],
        grads: list[Any],
        bundle: str | None,
    ) -> tuple[int, list[int]]:
        """Start in-place allreduces of the gradients that the engine can reduce as they are, and of the bundle.

        Append them to `sent` and `grads`. Return one handle for all of them (0 if there are none), and the numbers of
        the other gradients.

        Args:
            bundle: Name of the bundle's allreduce; None to send no bundle.
        """
    def land(self, numbers: list[int], grads: list[Any]) -> None:
        """Record that these gradients were reduced. Raise ValueError if the program moved or replaced one meanwhile.

        A further pass is refused while their parameters still have these gradients.
        """

# The codecs: functions of addresses (0 for none) and counts, which run without the GIL. horovod.common.codecs checks
# the arguments.

def codec_flavour() -> str:
    """Return the instruction set that the codecs use, such as "avx2"; results are the same with all of them."""

def codec_is_finite(values: int, count: int) -> bool: ...
def codec_int8_bytes(count: int, block: int) -> int: ...
def codec_int8_encode(values: int, residual: int, left: int, count: int, block: int, wire: int) -> None:
    """Encode values + residual. Write the rounding error to `left`, which may be one of the two."""

def codec_int8_decode(wire: int, count: int, block: int, factor: float, out: int, accumulate: bool) -> None:
    """Write factor * value to `out`, or add it to `out` if `accumulate` is True."""

def codec_int8_decode_sum(wires: Sequence[int], count: int, block: int, factor: float, out: int) -> None:
    """Write factor * (first + second + ...) to `out`."""

def codec_onebit_bytes(count: int) -> int: ...
def codec_onebit_encode(values: int, residual: int, left: int, count: int, wire: int) -> None:
    """Encode values + residual. Write the rounding error to `left`, which may be one of the two."""

def codec_onebit_decode(wire: int, count: int, factor: float, out: int, accumulate: bool) -> None:
    """Write factor * value to `out`, or add it to `out` if `accumulate` is True."""

def codec_onebit_decode_sum(wires: Sequence[int], count: int, factor: float, out: int) -> None:
    """Write factor * (first + second + ...) to `out`."""

def codec_topk_pairs(k: int) -> int:
    """Return the largest number of pairs in a message if k are wanted."""

def codec_topk_encode(values: int, residual: int, left: int, count: int, k: int, capacity: int, wire: int) -> int:
    """Encode about k values of values + residual as at most `capacity` pairs. Return the number of pairs.

    `left`, which may be one of the two, receives values + residual, with zeros where a value is sent.
    """

def codec_topk_decode(wire: int, bytes: int, count: int, factor: float, out: int, accumulate: bool) -> None:
    """Add factor * value at each index of `out`, which is zeroed first unless `accumulate` is True.

    Raise ValueError for an invalid message.
    """
