# SPDX-License-Identifier: Apache-2.0
"""Process group class for torch: torch's method names, old and new, implemented by `Collectives`.

torch calls these methods from Python. DDP and the functional collectives also call them from C++, by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from horovod._engine import EngineError
from horovod.torch.distributed import places
from horovod.torch.distributed.channel import Channel, Request, seconds
from horovod.torch.distributed.collectives import Collectives
from horovod.torch.distributed.work import WORK_SURVIVES_CPP, WorkList, as_cpp_work
from horovod.torch_backend_names import DEVICES

Tensor = torch.Tensor
_ProcessGroup: Any = dist.ProcessGroup  # its type stubs differ from one version of torch to the next


class HorovodProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """Process group whose collectives the engine runs."""

    def __init__(self, channel: Channel, timeout_s: float, name: str) -> None:
        super().__init__(channel.rank, channel.size)
        self._group_name = name
        self._group_description = ""
        self._channel = channel
        self._collectives = Collectives(channel)
        self._timeout_s = timeout_s
        self._coalesced: list[dist.Work] | None = None
        self._gpus: set[int] = set()  # GPUs that tensors of this group's operations have been on

    # Reductions

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        tensors = _listed(tensors)
        request = self._request("all_reduce", tensors, opts, timeout)
        return self._begun(self._collectives.all_reduce(request, tensors, _reduce_op(opts)))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        works = [
            self._collectives.all_reduce(self._request("all_reduce_coalesced", group, opts), group, _reduce_op(opts))
            for group in _by_dtype(tensors)
            if group
        ]
        return self._begun(works[0] if len(works) == 1 else WorkList(works))

    def reduce(self, tensors: Any, opts: Any = None, *others: Any) -> dist.Work:
        (tensor,) = _listed(tensors)
        root = opts if isinstance(opts, int) else opts.rootRank
        op = others[0] if others else _reduce_op(opts)
        return self._begun(self._collectives.reduce(self._request("reduce", [tensor], opts), tensor, root, op))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        (output,) = _listed(outputs)
        parts = inputs[0] if isinstance(inputs[0], list) else inputs
        request = self._request("reduce_scatter", [output, *parts], opts)
        return self._begun(self._collectives.reduce_scatter_list(request, output, parts, _reduce_op(opts)))

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> dist.Work:
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        request = self._request("reduce_scatter_tensor", [*outputs, *inputs], opts)
        return self._begun(self._collectives.reduce_scatter(request, outputs, inputs, _reduce_op(opts)))

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Collectives that move data

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        root = opts if isinstance(opts, int) else opts.rootRank
        tensors = _listed(tensors)
        request = self._request("broadcast", tensors, opts, timeout)
        return self._begun(self._collectives.broadcast(request, tensors, root))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        (given,) = _listed(inputs)
        parts = outputs[0] if isinstance(outputs[0], list) else outputs
        request = self._request("all_gather", [given, *parts], opts)
        return self._begun(self._collectives.all_gather_list(request, parts, given))

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Gather several tensors; `outputs[i][r]` receives the i-th input of rank r."""
        request = self._request("all_gather_coalesced", inputs, opts)
        pairs = zip(outputs, inputs, strict=True)
        return self._begun(
            WorkList([self._collectives.all_gather_list(request, parts, given) for parts, given in pairs])
        )

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> dist.Work:
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        request = self._request("all_gather_into_tensor", [*outputs, *inputs], opts)
        return self._begun(self._collectives.all_gather(request, outputs, inputs))

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_to_all_single(
        self, output: Tensor, given: Tensor, output_rows: Sequence[int], input_rows: Sequence[int], opts: Any = None
    ) -> dist.Work:
        request = self._request("all_to_all_single", [output, given], opts)
        return self._begun(self._collectives.all_to_all(request, output, given, list(output_rows), list(input_rows)))

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        request = self._request("all_to_all", [*outputs, *inputs], opts)
        return self._begun(self._collectives.all_to_all_list(request, outputs, inputs))

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *others: Any) -> dist.Work:
        (given,) = _listed(inputs)
        root = opts if isinstance(opts, int) else opts.rootRank
        parts = list(outputs[0] if outputs and isinstance(outputs[0], list) else outputs)
        request = self._request("gather", [given, *parts], opts)
        return self._begun(self._collectives.gather(request, parts, given, root))

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *others: Any) -> dist.Work:
        (output,) = _listed(outputs)
        root = opts if isinstance(opts, int) else opts.rootRank
        parts = list(inputs[0] if inputs and isinstance(inputs[0], list) else inputs)
        request = self._request("scatter", [output, *parts], opts)
        return self._begun(self._collectives.scatter(request, output, parts, root))

    # Barrier, and point to point

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        """Wait for all ranks, each of which first waits for the group's work on its GPUs."""
        request = self._request("barrier", (), opts, timeout)
        try:
            places.await_gpu(self._channel.world, self._gpus)
        except EngineError as error:
            raise self._channel.error(request, error) from None
        return self._begun(self._collectives.barrier(request))

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> dist.Work:
        return self._transfer(tensors, peer, tag, sends=True)

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> dist.Work:
        return self._transfer(tensors, peer, tag, sends=False)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> dist.Work:
        raise NotImplementedError(
            "The horovod backend can only receive from a named rank: pass src to recv (a message carries only its tag, "
            "so the ranks could not agree on whose comes first)"
        )

    def _transfer(self, tensors: list[Tensor], peer: int, tag: int, sends: bool) -> dist.Work:
        (tensor,) = tensors
        request = self._request(f"send to rank {peer}" if sends else f"recv from rank {peer}", tensors)
        return self._begun(self._collectives.transfer(request, tensor, peer, tag, sends))

    # Coalescing: operations start at once, and one call waits for all of them.

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> dist.Work:
        works, self._coalesced = self._coalesced or [], None
        return WorkList(works)

    def _begun(self, work: dist.Work) -> dist.Work:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work if WORK_SURVIVES_CPP else as_cpp_work(work)

    # Shutdown

    def shutdown(self) -> None:
        """Leave the group: pending operations fail on this rank, and on other ranks if they need this rank."""
        self._channel.close()
        self._collectives.completion.close()

    def abort(self) -> None:
        self._channel.fail("the process group has been aborted")
        self._collectives.completion.close()

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = seconds(timeout)

    def __del__(self) -> None:
        collectives = getattr(self, "_collectives", None)
        if collectives is not None:  # torch below 2.5 destroys a group by dropping it
            self.shutdown()

    # Properties

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "horovod"

    def name(self) -> str:
        return "horovod"

    # torch keeps a group's devices and name in its C++ backends; this group has none, so it answers itself.

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in DEVICES]

    def _get_backend(self, device: torch.device) -> HorovodProcessGroup:
        if torch.device(device).type not in DEVICES:
            raise RuntimeError(f"The horovod backend works on tensors of {' and '.join(DEVICES)}, not of {device}")
        return self

    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def group_desc(self) -> str:
        return self._group_description

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    def _set_group_desc(self, description: str) -> None:
        self._group_description = description

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        return self._group_name

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        return self._group_description

    def _set_sequence_number_for_group(self) -> None:
        """Ignore the call, because the channel numbers operations."""

    def _request(
        self, operation: str, tensors: Sequence[Tensor], opts: Any = None, timeout: timedelta | None = None
    ) -> Request:
        place = places.place_of(tensors)
        if place is not places.HOST:
            self._gpus.add(place.device)
        given = timeout if timeout is not None else getattr(opts, "timeout", None)
        limit_s = seconds(given) if given is not None else 0.0
        # Versions of torch below 2.7 do not say whether the caller waits.
        will_wait = self._coalesced is None and not getattr(opts, "asyncOp", True)
        return Request(operation, limit_s if limit_s > 0 else self._timeout_s, will_wait, place)


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _reduce_op(opts: Any) -> Any:
    if opts is None:
        return dist.ReduceOp.SUM
    return opts.reduceOp if hasattr(opts, "reduceOp") else opts


def _by_dtype(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())
