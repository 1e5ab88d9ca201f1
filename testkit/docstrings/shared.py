# SPDX-License-Identifier: Apache-2.0
"""Texts of the names that every API has."""

from __future__ import annotations

from testkit.docstrings.entry import Entry

_NOT_INITIALIZED = {"HorovodNotInitializedError": "Call hvd.init() first. The error is also a ValueError."}
_ERROR_ARGUMENTS = {
    "args": "The message.",
    "lost_rank": "Value of the attribute.",
    "operation": "Value of the attribute.",
}


def _question(summary: str, returns: str, example: str, about: str = "") -> Entry:
    """Return the text of a function that needs hvd.init() and has no arguments."""
    return Entry(summary, about, {}, returns, _NOT_INITIALIZED, example)


TABLE = {
    "init": Entry(
        "Meet the other ranks and start the engine.",
        "Call this once, before any other function that needs ranks. A second call returns at once. A program that "
        "was started without a launcher is rank 0 of "
        "1.",
        {
            "comm": "Ranks of the MPI job that take part, as a list, or a communicator of mpi4py. By default all "
            "ranks. Elastic jobs do not support it.",
            "process_sets": "List of hvd.ProcessSet to register, equal on all ranks; or 'dynamic', to add and remove "
            "sets later.",
        },
        "",
        {
            "HorovodInitializationError": "The ranks could not meet in time, or they passed different process sets. "
            "The error is also a ValueError.",
            "ValueError": "A process set contains a rank twice or a rank that does not exist.",
        },
        "import horovod.numpy as hvd  # or horovod.torch, .tensorflow, .keras, .jax, .mxnet\nhvd.init()",
    ),
    "shutdown": Entry(
        "Leave the other ranks and stop the engine.",
        "hvd.init() may be called again. Operations that have not completed fail. A call without hvd.init() does "
        "nothing. A program that ends "
        "calls "
        "this function itself.",
        {},
        "",
        {},
        "hvd.shutdown()\nhvd.init()  # the ranks meet again",
    ),
    "is_initialized": Entry(
        "Return True between hvd.init() and hvd.shutdown().",
        returns="True if the engine is running.",
        example="if not hvd.is_initialized():\n    hvd.init()",
    ),
    "start_timeline": Entry(
        "Write a timeline of all operations to a file from now on.",
        "Only rank 0 writes, unless the path contains `%r` (the rank) or HOROVOD_TIMELINE_ALL_RANKS is set. A file "
        "that "
        "cannot be written is logged as a warning. Viewers of Chrome traces show the file.",
        {
            "file_path": "The file to write.",
            "mark_cycles": "Mark the engine's cycles in the timeline.",
        },
        "",
        {**_NOT_INITIALIZED, "ValueError": "HOROVOD_TIMELINE is not set; set it to DYNAMIC or to a file."},
        "hvd.start_timeline('timeline.json')\nhvd.stop_timeline()",
    ),
    "stop_timeline": Entry(
        "Finish the timeline that hvd.start_timeline(), or HOROVOD_TIMELINE, began.",
        raises={**_NOT_INITIALIZED, "ValueError": "HOROVOD_TIMELINE is not set; set it to DYNAMIC or to a file."},
        example="hvd.start_timeline('timeline.json')\nhvd.stop_timeline()",
    ),
    "counters": _question(
        "Return how many bytes this process has sent, received and moved through shared memory since it started.",
        "The number of bytes by name. `data_bytes_sent` and `data_bytes_received` count bytes of tensors on TCP "
        "connections between ranks; they are None after MPI was chosen or NCCL has moved tensors, because these "
        "libraries do not report bytes. `control_bytes_sent` and `control_bytes_received` count all other bytes on "
        "these connections, without TCP's headers. `shared_memory_bytes_read` and `shared_memory_bytes_written` count "
        "bytes that this rank read from memory of other ranks on its host, and wrote straight into their tensors.",
        "before = hvd.counters()['shared_memory_bytes_read']\n"
        "hvd.counters()['shared_memory_bytes_read'] >= before  # on 2 ranks: True",
        "The counters continue when hvd.init() is called again, also by elastic training. A number never decreases.",
    ),
    "size": _question(
        "Return the number of ranks of the job.",
        "The number of ranks, 1 for a program that was started without a launcher.",
        "share = 1000 // hvd.size()  # samples of each rank\nshare  # on 2 ranks: 500",
    ),
    "local_size": _question(
        "Return the number of ranks on this host.",
        "The number of ranks on this host.",
        "threads = max(1, 16 // hvd.local_size())  # each rank's share of 16 cores\nprint(threads)",
    ),
    "cross_size": _question(
        "Return the number of hosts that have a rank with this local rank.",
        "The number of hosts. If hosts have different numbers of ranks, it differs between local ranks.",
        "if hvd.cross_size() > 1:\n    print('the job uses several hosts')",
    ),
    "rank": _question(
        "Return this process's rank, its number among all ranks of the job.",
        "A number from 0 to hvd.size() - 1.",
        "if hvd.rank() == 0:\n    print('only one rank prints this')",
    ),
    "local_rank": _question(
        "Return this process's number among the ranks on its host.",
        "A number from 0 to hvd.local_size() - 1. Programs often use the GPU of this number.",
        "device = f'cuda:{hvd.local_rank()}'\nprint(device)",
    ),
    "cross_rank": _question(
        "Return the number of this host among the hosts that have a rank with this local rank.",
        "A number from 0 to hvd.cross_size() - 1.",
        "if hvd.cross_rank() == 0 and hvd.local_rank() == 0:\n    print('first rank of the first host')",
    ),
    "is_homogeneous": _question(
        "Return True if every host has the same number of ranks.",
        "True if every host has the same number of ranks.",
        "if not hvd.is_homogeneous():\n    print('hosts have different numbers of ranks')",
    ),
    "mpi_threads_supported": Entry(
        "Return True if the program's own threads may call MPI.",
        returns="True if MPI supports calls from several threads.",
        raises={"ValueError": "MPI does not move tensors in this job."},
        example="if hvd.mpi_enabled():\n    print(hvd.mpi_threads_supported())",
    ),
    "mpi_enabled": Entry(
        "Return True if tensors travel by MPI in this job.",
        returns="True after hvd.init() in a job that moves tensors by MPI.",
        example="if hvd.mpi_enabled():\n    print('tensors travel by MPI')",
    ),
    "mpi_built": Entry(
        "Return True if MPI can be used in jobs that mpirun starts.",
        returns="True if mpi4py is installed.",
        example="if not hvd.mpi_built():\n    print('install mpi4py to use MPI')",
    ),
    "gloo_enabled": Entry(
        "Return True if tensors travel by shared memory and TCP, without MPI.",
        "Scripts written for Horovod ask for Gloo, whose place the engine takes.",
        returns="True unless hvd.mpi_enabled().",
        example="hvd.gloo_enabled() != hvd.mpi_enabled()  # on 2 ranks: True",
    ),
    "gloo_built": Entry(
        "Return True, because the engine needs no MPI.",
        "Scripts written for Horovod ask for Gloo, whose place the engine takes.",
        returns="True.",
        example="hvd.gloo_built()  # on 2 ranks: True",
    ),
    "nccl_built": Entry(
        "Return the version number of the installed NCCL library.",
        returns="The version as a number, for example 22809 for 2.28.9, or 0 if NCCL is not installed.",
        example="if hvd.nccl_built() >= 21000:\n    print('NCCL 2.10 or newer')",
    ),
    "ddl_built": Entry(
        "Return False, because the engine does not use IBM DDL.",
        returns="False.",
        example="hvd.ddl_built()  # on 2 ranks: False",
    ),
    "ccl_built": Entry(
        "Return False, because the engine does not use oneCCL.",
        returns="False.",
        example="hvd.ccl_built()  # on 2 ranks: False",
    ),
    "cuda_built": Entry(
        "Return False, because the engine loads CUDA when a program uses it, instead of being built with it.",
        returns="False, also where tensors on a GPU are supported.",
        example="hvd.cuda_built()  # on 2 ranks: False",
    ),
    "rocm_built": Entry(
        "Return False, because the engine does not use ROCm.",
        returns="False.",
        example="hvd.rocm_built()  # on 2 ranks: False",
    ),
    "ProcessSet": Entry(
        "Ranks that run collectives among themselves.",
        "Register a set with hvd.init(process_sets=...) or hvd.add_process_set(), then pass it as `process_set`.",
        {"ranks_or_comm": "List of ranks, in any order, or a communicator of mpi4py."},
        "",
        {"ValueError": "The argument is neither a list of integers nor a communicator."},
        "first = hvd.ProcessSet([0])\nfirst.size() is None  # on 2 ranks: True",
    ),
    "add_process_set": Entry(
        "Register a process set while the job runs.",
        "Every rank of the job must call this with the same ranks. Process sets must be dynamic: call "
        "hvd.init(process_sets='dynamic') or set HOROVOD_DYNAMIC_PROCESS_SETS=1. "
        "In "
        "jobs that use MPI, each rank may pass the communicator of mpi4py that it is in, or COMM_NULL.",
        {"process_set": "The set, or a list of its ranks."},
        "The registered set.",
        {
            "ValueError": "Process sets are not dynamic, a set with these ranks exists, or a rank does not exist.",
            **_NOT_INITIALIZED,
        },
        "first = hvd.add_process_set([0])\nhvd.remove_process_set(first)  # on 2 ranks: True",
    ),
    "remove_process_set": Entry(
        "Remove a process set while the job runs.",
        "Every rank of the job must call this. Process sets must be dynamic: call hvd.init(process_sets='dynamic') or "
        "set "
        "HOROVOD_DYNAMIC_PROCESS_SETS=1.",
        {"process_set": "The set to remove."},
        "True if the set was removed. False for the set of all ranks and for a set that is not registered.",
        {"ValueError": "Process sets are not dynamic.", **_NOT_INITIALIZED},
        "first = hvd.add_process_set([0])\nhvd.remove_process_set(first)  # on 2 ranks: True",
    ),
    "HorovodInternalError": Entry(
        "A rank failed, a connection broke or the engine was shut down while an operation was pending.",
        "Elastic training recovers from this error. `lost_rank` is the rank that failed, or None if it is not known. "
        "`operation` is the name of the operation, or None.",
        _ERROR_ARGUMENTS,
        "",
        {},
        "error = hvd.HorovodInternalError('rank 1 was lost', lost_rank=1)\nerror.lost_rank  # on 2 ranks: 1",
    ),
    "HorovodMismatchError": Entry(
        "Ranks disagree about a tensor or a step.",
        "For example, rank 0 reduces float32 of shape (3,) and rank 1 float64 of shape (4,) under one name. Every rank "
        "of the process set raises it, and the next operation works. Elastic training does not recover from it.",
        args=_ERROR_ARGUMENTS,
        example="issubclass(hvd.HorovodMismatchError, hvd.HorovodInternalError)  # on 2 ranks: True",
    ),
    "check_extension": Entry(
        "Raise ImportError, with what to install, if a framework is missing.",
        args={
            "ext_name": "The API's module, for example 'horovod.torch'.",
            "ext_env_var": "Has no effect.",
            "pkg_path": "Has no effect.",
            "args": "Have no effect.",
        },
        raises={"ImportError": "The framework is not installed."},
        example="name = hvd.__name__\nhvd.check_extension(name, '', '')",
    ),
    "split_list": Entry(
        "Cut a list into consecutive parts whose lengths differ by at most one.",
        args={"l": "The list.", "n": "Number of parts."},
        returns="The parts; the longer ones are first.",
        example="hvd.split_list([1, 2, 3], 2)  # on 2 ranks: [[1, 2], [3]]",
    ),
    "allgather_object": Entry(
        "Gather one Python object from each rank.",
        "The objects are pickled with cloudpickle. Threads that gather objects at the same time in one process set "
        "need names of their own.",
        {
            "obj": "Any object that can be pickled.",
            "name": "Name under which the ranks match this call. By default 'allgather_object'.",
        },
        "The objects of all ranks, in the order of the ranks. Each is a copy, also this rank's own.",
        {"HorovodInternalError": "A rank could not pickle its object, or failed."},
        "found = hvd.allgather_object({'rank': hvd.rank()})\n[one['rank'] for one in found]  # on 2 ranks: [0, 1]",
    ),
    "broadcast_object": Entry(
        "Send one rank's Python object to all ranks.",
        "The object is pickled with cloudpickle. Threads that broadcast objects at the same time in one process set "
        "need names of their own.",
        {
            "obj": "The root's object. The other ranks may pass anything.",
            "name": "Name under which the ranks match this call. By default 'broadcast_object'.",
        },
        "The root's object. On the root it is the object itself, on other ranks a copy.",
        {"HorovodInternalError": "The root could not pickle its object, or a rank failed."},
        "config = hvd.broadcast_object({'lr': 0.1} if hvd.rank() == 0 else None)\nconfig['lr']  # on 2 ranks: 0.1",
    ),
}
