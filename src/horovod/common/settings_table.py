# SPDX-License-Identifier: Apache-2.0
"""The table of settings: name, type, unit, default, range, flag, YAML key, meaning.

The launcher's flags, the config file, the page of settings and `hvd doctor` are generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

Value: TypeAlias = "bool | int | float | str"


@dataclass(frozen=True)
class Setting:
    """One HOROVOD_* variable, or the flag or config key for it.

    `default` is None if there is none. Settings with an engine field have their defaults in
    engine/include/hvd/settings.h.
    """

    name: str
    type: type[bool] | type[int] | type[float] | type[str]
    default: Value | None
    help: str
    unit: str = ""
    minimum: float | None = None  # smallest value of a number; all code that reads the setting must handle both limits
    maximum: float | None = None  # largest value of a number, or longest text in characters
    choices: tuple[str, ...] = ()  # in lower case; the comparison ignores case
    path: bool = False  # True for a file's name, which may contain any bytes; other texts must be printable
    numbers: bool = False  # True for a text of numbers from 0 to MOST_CORES - 1, separated by commas
    kept: bool = False  # True if the value is checked and then ignored, for scripts written for Horovod
    flag: str | None = None  # horovodrun's flag
    yaml_key: str | None = None  # dotted path in the config file
    engine_field: str | None = None  # name of its field in engine/include/hvd/settings.h
    engine_factor: float = 1  # factor from this setting's unit to the engine's
    flag_factor: int = 1  # factor from the unit of the flag and YAML key to this setting's

    @property
    def meaning(self) -> str:
        return self.help + (" Accepted, no effect in this version." if self.kept else "")

    def default_of(self, engine: Mapping[str, int | bytes]) -> Value | None:
        """Return the default in this setting's unit, from the engine's defaults. Return None for no fixed default.

        An engine default below 0 means that the engine decides at run time.
        """
        if self.engine_field is None:
            return self.default
        value = engine[self.engine_field]
        if isinstance(value, bytes):
            return value.decode() or None
        if value < 0:
            return None
        if self.choices:
            return self.choices[value]
        return self.type(value / self.engine_factor)

    @property
    def longest(self) -> int:
        """The maximum length of a text in characters, or of a file's name in bytes."""
        usual = _LONGEST_PATH if self.path else _LONGEST_TEXT
        return usual if self.maximum is None else int(self.maximum)

    def accepted(self) -> str:
        """Return a description of valid values, for error messages and the docs."""
        if self.type is bool:
            return "an integer (above 0 means on)"
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.numbers:
            return f"numbers from 0 to {MOST_CORES - 1}, separated by commas"
        if self.type is str:
            kind, units = ("a file name", "bytes") if self.path else ("a text", "printable characters")
            return f"{kind} of at most {self.longest} {units}"
        kind = "an integer" if self.type is int else "a number"
        unit = f" of {self.unit}" if self.unit else ""
        assert self.minimum is not None, self.name
        assert self.maximum is not None, self.name
        return f"{kind}{unit} from {plain(self.minimum)} to {plain(self.maximum)}"

    def given_as(self, name: str) -> Setting:
        """Return this setting under the name of a flag or config key, in the unit of the flag."""
        if self.flag_factor == 1:
            return replace(self, name=name)
        assert self.minimum is not None, self.name
        assert self.maximum is not None, self.name
        low, high = self.minimum / self.flag_factor, self.maximum // self.flag_factor
        return replace(self, name=name, unit="MiB", minimum=low, maximum=high, flag_factor=1)


def plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


_MIB = 1024 * 1024
_MANY = 1_000_000  # upper limit of counts that have no natural limit
MOST_RANKS = 1 << 20
MOST_CORES = 1024  # number of cores that fit into a cpu_set_t
_MOST_BYTES = 1 << 40  # limit of the bytes of one or several tensors, low enough that sums fit into 64 bits
_LONG_S = 2_000_000  # 23 days, because poll() and Python's waits count milliseconds in 32 bits
_AGES_S = 1_000_000_000  # 31 years, because the engine's clock counts nanoseconds in 64 bits
_LONGEST_TEXT, _LONGEST_PATH = 255, 4095

# fmt: off

_TUNING = (
    Setting("HOROVOD_FUSION_THRESHOLD", int, None, "Tensors are fused up to this size; 0 turns fusion off.",
            unit="bytes", minimum=0, maximum=_MOST_BYTES, flag="--fusion-threshold-mb",
            yaml_key="params.fusion_threshold_mb", engine_field="fusion_threshold", flag_factor=_MIB),
    Setting("HOROVOD_CYCLE_TIME", float, None, "Upper bound on the time that asynchronous work is gathered for fusion.",
            unit="milliseconds", minimum=0, maximum=3_600_000, flag="--cycle-time-ms", yaml_key="params.cycle_time_ms",
            engine_field="cycle_time_us", engine_factor=1000),
    Setting("HOROVOD_CACHE_CAPACITY", int, None,
            "Most entries of the response cache, which grows with the number of tensors; 0 turns it off.",
            minimum=0, maximum=1 << 24, flag="--cache-capacity", yaml_key="params.cache_capacity",
            engine_field="cache_capacity"),
    Setting("HOROVOD_HIERARCHICAL_ALLREDUCE", bool, None,
            "Reduce inside each host before reducing between hosts; reducescatter too.",
            flag="--hierarchical-allreduce", yaml_key="params.hierarchical_allreduce",
            engine_field="hierarchical_allreduce"),
    Setting("HOROVOD_HIERARCHICAL_ALLGATHER", bool, None,
            "Gather between hosts once for each host, not for each rank; broadcast and alltoall too. "
            "1: whatever the size.",
            flag="--hierarchical-allgather", yaml_key="params.hierarchical_allgather",
            engine_field="hierarchical_allgather"),
    Setting("HOROVOD_HOST_ALGORITHM", str, None, "How allreduce goes between hosts: to all at once, around a ring, or "
            "by doubling; auto goes by the number of hosts and the tensor's size (tuning.md).",
            choices=("auto", "direct", "ring", "doubling"), engine_field="host_algorithm"),
    Setting("HOROVOD_GPU_TRANSPORT", str, None, "How CUDA tensors travel: nccl, ipc through the memory of the GPU that "
            "ranks of one host share, staged through host memory; auto takes nccl where there are several GPUs (with "
            "ipc among ranks that share one), else ipc where it works and pays; own is auto without nccl (gpu.md). "
            "What one rank asks for holds for all.",
            choices=("auto", "ipc", "staged", "nccl", "own"), engine_field="gpu_transport"),
    Setting("HOROVOD_NCCL_LIBRARY", str, None, "NCCL's file, libnccl.so.2. Unset: the one that the framework has "
            "loaded, or that a wheel has brought, or that the system finds.", path=True, engine_field="nccl_library"),
    Setting("HOROVOD_GPU_SLOT_BYTES", int, None, "Size of each chunk of GPU memory that a process set keeps for "
            "its collectives, of which there are HOROVOD_CHUNK_SLOTS. That of the set's first rank counts.",
            unit="bytes", minimum=64 * 1024, maximum=1024 * _MIB, engine_field="gpu_slot_bytes"),
    Setting("HOROVOD_GPU_STAGED_BYTES", int, None, "CUDA tensors of which less than this travels between two ranks go "
            "through host memory, which is faster for few bytes; for each rank more, half of it is added. That of the "
            "process set's first rank counts.",
            unit="bytes", minimum=0, maximum=_MOST_BYTES, engine_field="gpu_staged_bytes"),
    Setting("HOROVOD_NCCL_FUSED_BYTES", int, None, "Tensors that travel together and are smaller than this on "
            "average go to NCCL in one call, through a buffer; others in a call each. That of the first rank counts.",
            unit="bytes", minimum=0, maximum=_MOST_BYTES, engine_field="nccl_fused_bytes"),
    Setting("HOROVOD_TORUS_ALLREDUCE", bool, False, "Two-dimensional allreduce over NCCL.",
            flag="--torus-allreduce", yaml_key="params.torus_allreduce", kept=True),
    Setting("HOROVOD_DISABLE_GROUP_FUSION", bool, None, "Never fuse a group with tensors outside it.",
            engine_field="disable_group_fusion"),
    Setting("HOROVOD_SHARED_MEMORY", bool, None, "Use shared memory between ranks of one host; 0: sockets only.",
            engine_field="shared_memory"),
    Setting("HOROVOD_CHUNK_BYTES", int, None, "Size of the chunks in which a collective moves its data.",
            unit="bytes", minimum=64, maximum=16 * _MIB, engine_field="slot_bytes"),
    Setting("HOROVOD_CHUNK_SLOTS", int, None, "Chunks that may be under way at once between two ranks.",
            minimum=2, maximum=64, engine_field="slots"),
    Setting("HOROVOD_SMALL_MESSAGE_BYTES", int, None,
            "Every rank reduces the whole message itself while it reads no more than this from the others.",
            unit="bytes", minimum=0, maximum=_MOST_BYTES, engine_field="small_bytes"),
    Setting("HOROVOD_EXPRESS_BYTES", int, None,
            "A caller that waits for one small collective gets it without asking the leader, while the bytes that go "
            "with its messages to all others are no more than 16 times this, for broadcast and allgather 32 times "
            "(shared memory takes 64 KB); 0: never.",
            unit="bytes", minimum=0, maximum=8 * _MIB, engine_field="express_bytes"),
    Setting("HOROVOD_SINGLE_COPY_BYTES", int, None,
            "Results of allgather and alltoall from this size on (64 times that where ranks share cores) are written "
            "by the other ranks of the host where they belong, not copied twice; 0: never.",
            unit="bytes", minimum=0, maximum=_MOST_BYTES, engine_field="single_copy_bytes"),
    Setting("HOROVOD_TCP_STREAMS", int, None, "Sockets between two ranks of different hosts. One is enough, on links "
            "with long delays too.",
            minimum=1, maximum=64, engine_field="tcp_streams"),
    Setting("HOROVOD_SPIN_US", int, None, "How long a waiting caller spins before it sleeps; 0: it sleeps at once. "
            "Ranks that share cores never spin.",
            unit="microseconds", minimum=0, maximum=3_600_000_000, engine_field="spin_us"),
    Setting("HOROVOD_DETERMINISTIC", bool, None,
            "Make results independent, to the bit, of how ranks lie on hosts. What is compressed is then also rounded "
            "on one host.",
            engine_field="deterministic"),
    Setting("HOROVOD_PEER_TIMEOUT_SECONDS", float, None, "A silent peer is declared dead after this time; 0: never.",
            unit="seconds", minimum=0, maximum=_AGES_S, engine_field="peer_timeout_ms", engine_factor=1000),
)

_AUTOTUNE = (
    Setting("HOROVOD_AUTOTUNE", bool, None, "Tune fusion, gathering and chunks while the job runs (tuning.md).",
            flag="--autotune", yaml_key="autotune.enabled", engine_field="autotune"),
    Setting("HOROVOD_AUTOTUNE_LOG", str, None, "CSV file for the autotuner's samples.",
            path=True, flag="--autotune-log-file", yaml_key="autotune.log_file", engine_field="autotune_log"),
    Setting("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", int, None, "Samples that are discarded at the start.",
            minimum=0, maximum=_MANY, flag="--autotune-warmup-samples", yaml_key="autotune.warmup_samples",
            engine_field="autotune_warmup_samples"),
    Setting("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", int, None, "Steps over which one sample is measured.",
            minimum=0, maximum=_MANY, flag="--autotune-steps-per-sample", yaml_key="autotune.steps_per_sample",
            engine_field="autotune_steps_per_sample"),
    Setting("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", int, None,
            "Samples of the search; the best are then measured again.",
            minimum=0, maximum=_MANY, flag="--autotune-bayes-opt-max-samples",
            yaml_key="autotune.bayes_opt_max_samples", engine_field="autotune_max_samples"),
    Setting("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", float, None,
            "Assumed noise of a sample, where 1 is all that samples differ by.",
            minimum=0, maximum=1, flag="--autotune-gaussian-process-noise", yaml_key="autotune.gaussian_process_noise",
            engine_field="autotune_noise_permille", engine_factor=1000),
)

_OBSERVATION = (
    Setting("HOROVOD_TIMELINE", str, None, "File for the timeline, or DYNAMIC to start and stop it from the script.",
            path=True, flag="--timeline-filename", yaml_key="timeline.filename"),
    Setting("HOROVOD_TIMELINE_MARK_CYCLES", bool, False, "Mark cycles in the timeline.",
            flag="--timeline-mark-cycles", yaml_key="timeline.mark_cycles"),
    Setting("HOROVOD_TIMELINE_ALL_RANKS", bool, False, "Each rank writes a timeline, its number in the file's name."),
    Setting("HOROVOD_STALL_CHECK_DISABLE", bool, False, "Do not look for stalled ranks.",
            flag="--no-stall-check", yaml_key="stall_check.enabled"),
    Setting("HOROVOD_STALL_CHECK_TIME_SECONDS", int, None, "A tensor that waits longer for some ranks is reported.",
            unit="seconds", minimum=0, maximum=_AGES_S, flag="--stall-check-warning-time-seconds",
            yaml_key="stall_check.warning_time_seconds", engine_field="stall_warning_ms", engine_factor=1000),
    Setting("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", int, None, "A stall that lasts longer ends the job; 0: never.",
            unit="seconds", minimum=0, maximum=_AGES_S, flag="--stall-check-shutdown-time-seconds",
            yaml_key="stall_check.shutdown_time_seconds", engine_field="stall_shutdown_ms", engine_factor=1000),
    Setting("HOROVOD_DEADLOCK_CHECK_TIME_SECONDS", float, None, "Ranks that wait for each other are told so after this "
            "time, by an error where nothing can release them (troubleshooting.md); 0: never.",
            unit="seconds", minimum=0, maximum=_AGES_S, engine_field="deadlock_ms", engine_factor=1000),
    Setting("HOROVOD_LOG_LEVEL", str, None, "What is logged: this and what is worse (troubleshooting.md).",
            choices=("trace", "debug", "info", "warning", "error", "fatal"), flag="--log-level",
            yaml_key="logging.level", engine_field="log_level"),
    Setting("HOROVOD_LOG_HIDE_TIME", bool, None, "Log lines carry no time.", flag="--log-without-timestamp",
            yaml_key="logging.with_timestamp", engine_field="log_hide_time"),
    Setting("HOROVOD_DISABLE_NVTX_RANGES", bool, False, "No NVTX ranges, by which NVIDIA's profilers show operations "
            "on PyTorch's CUDA tensors."),
)

_JOB = (
    Setting("HOROVOD_RANK", int, None, "Rank of this process; the launcher sets it.", minimum=0,
            maximum=MOST_RANKS - 1),
    Setting("HOROVOD_SIZE", int, None, "Number of ranks; the launcher sets it.", minimum=1, maximum=MOST_RANKS),
    Setting("HOROVOD_LOCAL_RANK", int, None, "Rank among the processes of this host.", minimum=0,
            maximum=MOST_RANKS - 1),
    Setting("HOROVOD_LOCAL_SIZE", int, None, "Number of ranks on this host.", minimum=1, maximum=MOST_RANKS),
    Setting("HOROVOD_CROSS_RANK", int, None, "Index of this host among those that own the same local rank.", minimum=0,
            maximum=MOST_RANKS - 1),
    Setting("HOROVOD_CROSS_SIZE", int, None, "Number of hosts that own the same local rank.", minimum=1,
            maximum=MOST_RANKS),
    Setting("HOROVOD_HOSTNAME", str, None, "Identity of this host: ranks with the same one may share memory."),
    Setting("HOROVOD_GENERATION", int, 0, "Number of the (re)initialisation that this process takes part in.",
            minimum=0, maximum=(1 << 31) - 1),
    Setting("HOROVOD_RENDEZVOUS", str, "auto", "Who serves the rendezvous: external (the launcher), self (rank 0, at "
            "the rendezvous address and port), mpi or file (rank 0, which tells the others by MPI or by a file).",
            choices=("auto", "external", "self", "mpi", "file")),
    Setting("HOROVOD_SHARED_DIR", str, None, "Directory, seen by all hosts, in which rank 0 leaves the others a file "
            "when mpirun or srun started them.", path=True),
    Setting("HOROVOD_GLOO_RENDEZVOUS_ADDR", str, None, "Address of the rendezvous."),
    Setting("HOROVOD_GLOO_RENDEZVOUS_PORT", int, None, "Port of the rendezvous.", minimum=-1, maximum=65535),
    Setting("HOROVOD_GLOO_IFACE", str, None, "Network interface for traffic between hosts."),
    Setting("HOROVOD_HOST_ADDRESS", str, None, "Address at which other hosts reach this one; set by horovodrun, which "
            "has tried it out. Goes before HOROVOD_GLOO_IFACE."),
    Setting("HOROVOD_SSH_COMMAND", str, "ssh", "How horovodrun reaches other hosts, for example ssh -F FILE.",
            path=True),
    Setting("HOROVOD_GLOO_TIMEOUT_SECONDS", float, 30, "Limit for meeting and connecting to the other ranks.",
            unit="seconds", minimum=0, maximum=_LONG_S, flag="--gloo-timeout-seconds",
            yaml_key="library_options.gloo_timeout_seconds"),
    Setting("HOROVOD_CONTROLLER", str, "gloo", "Who starts and coordinates the ranks. horovodrun says so if it is "
            "not gloo and --mpi is missing.", choices=("gloo", "mpi"),
            yaml_key="controller", kept=True),
    Setting("HOROVOD_CPU_OPERATIONS", str, "gloo", "Who moves tensors on the CPU: gloo (shared memory and TCP), or "
            "mpi in jobs that mpirun started, wherever it can; set by horovodrun --mpi. ccl: as gloo. horovodrun "
            "without --mpi replaces any value by gloo, and says so.",
            choices=("gloo", "mpi", "ccl")),
    Setting("HOROVOD_DYNAMIC_PROCESS_SETS", bool, False, "Allow add_process_set and remove_process_set."),
    Setting("HOROVOD_BIRTH_ID", int, None, "Set by the elastic driver, which knows a worker by this number for life.",
            minimum=0, maximum=(1 << 31) - 1),
    Setting("HOROVOD_ELASTIC", bool, False, "Set by the elastic driver."),
    Setting("HOROVOD_START_TIMEOUT", int, 30, "How long horovodrun waits for each host to answer.",
            unit="seconds", minimum=0, maximum=_LONG_S, flag="--start-timeout"),
    Setting("HOROVOD_ELASTIC_TIMEOUT", int, 600, "How long the elastic driver waits for enough slots.",
            unit="seconds", minimum=1, maximum=_LONG_S, flag="--elastic-timeout"),
    Setting("HOROVOD_SIMULATE_HOSTS", bool, False, "horovodrun takes every host for this machine: for trying out."),
    Setting("HOROVOD_THREAD_AFFINITY", str, None, "The only core that the engine thread runs on: one number for all "
            "ranks, or one for each local rank. Threads of the program itself that wait for a result are not pinned.",
            numbers=True, maximum=4095, flag="--thread-affinity", yaml_key="library_options.thread_affinity"),
)

_SURVIVAL = (
    Setting("HOROVOD_SPARES", int, 0, "Elastic jobs: workers beyond the others that wait inside hvd.init() until one "
            "is lost, and take its place.", minimum=0, maximum=MOST_RANKS, flag="--spares", yaml_key="elastic.spares"),
    Setting("HOROVOD_ELASTIC_COMMIT", str, "device", "PyTorch: where commits of models and optimizers on a GPU are "
            "kept: device, in twice their size of GPU memory; host, in as much pinned host memory, which is slower "
            "(elastic.md).", choices=("device", "host")),
    Setting("HOROVOD_PREEMPTION_GRACE_SECONDS", float, 30, "Elastic jobs: how long a worker that gets SIGTERM may take "
            "until its next commit, at which it leaves; then it ends at once. 0: it ends at once, as others do.",
            unit="seconds", minimum=0, maximum=_LONG_S),
    Setting("HOROVOD_CUT_PROBE_SECONDS", float, 10, "Elastic jobs: how soon hosts that do not reach each other try "
            "again; each time it takes twice as long, up to eight times this (elastic.md).", unit="seconds",
            minimum=0.1, maximum=_LONG_S),
    Setting("HOROVOD_PROGRESS_TIMEOUT_SECONDS", float, 0, "Elastic jobs: a worker that commits nothing and completes "
            "no collective for so long is reported with its Python stack; 0: never.",
            unit="seconds", minimum=0, maximum=_LONG_S, flag="--progress-timeout-seconds",
            yaml_key="elastic.progress_timeout_seconds"),
    Setting("HOROVOD_REPLACE_STUCK_WORKERS", bool, False, "Elastic jobs: a worker without progress is killed and "
            "replaced; takes effect with a progress timeout.", flag="--replace-stuck-workers",
            yaml_key="elastic.replace_stuck_workers"),
    Setting("HOROVOD_MAX_RESTARTS", int, 0, "How many times horovodrun starts all workers anew after a failure; the "
            "program goes on from a checkpoint of its own.", minimum=0, maximum=_MANY, flag="--max-restarts",
            yaml_key="elastic.max_restarts"),
    Setting("HOROVOD_RESTART_COUNT", int, 0, "How many times the job was started anew so far; horovodrun sets it.",
            minimum=0, maximum=_MANY),
)

_BACK_ENDS = (
    Setting("HOROVOD_NUM_NCCL_STREAMS", int, 1, "Number of streams for NCCL.",
            minimum=1, maximum=64, flag="--num-nccl-streams", yaml_key="library_options.num_nccl_streams", kept=True),
    Setting("HOROVOD_ENABLE_ASYNC_COMPLETION", bool, False, "Complete GPU work by stream events.", kept=True),
    Setting("HOROVOD_ENABLE_XLA_OPS", bool, False, "TensorFlow: collectives inside XLA-compiled functions; always on.",
            kept=True),
    Setting("HOROVOD_CHECK_PARAMETERS", bool, True, "PyTorch: warn if ranks train with different parameters; looked at "
            "in an optimizer's first reduction, and in the first one after hvd.join()."),
    Setting("HOROVOD_TORCH_WAIT_IN_BACKWARD", bool, True,
            "PyTorch: gradients are complete when backward() returns; 0: when optimizer.step() begins."),
    Setting("HOROVOD_TORCH_OVERLAP", bool, None,
            "PyTorch: reduce gradients while backward() runs; 0: at its end. Unset: meanwhile if a core is free, and "
            "on GPUs that ranks do not share."),
    Setting("HOROVOD_TORCH_SHARED_GRADIENTS", bool, None, "PyTorch: large gradients move into shared memory as soon as "
            "they are there; 0: they are staged. Unset: they move where they are reduced at the end of backward()."),
    Setting("HOROVOD_JAX_FFI", bool, None,
            "JAX: programs call the engine directly; 0: through Python. Unset: directly wherever XLA lets them."),
    Setting("HOROVOD_TENSORFLOW_NATIVE", bool, None, "TensorFlow: collectives are operations of TensorFlow's own; "
            "0: they go through Python. Unset: native wherever TensorFlow can load them."),
    Setting("HOROVOD_BATCH_D2D_MEMCOPIES", bool, True, "Batch copies into and out of the GPU's fusion buffer.",
            kept=True),
    Setting("HOROVOD_ADASUM_MPI_CHUNK_SIZE", int, 1 << 30, "Chunks of Adasum over MPI.", unit="bytes", minimum=0,
            maximum=_MOST_BYTES, kept=True),
    Setting("HOROVOD_MPI_THREADS_DISABLE", bool, False, "Ask MPI for one thread at a time, if the program itself does "
            "not use MPI.", flag="--mpi-threads-disable", yaml_key="library_options.mpi_threads_disable"),
    Setting("HOROVOD_CCL_CACHE", bool, False, "Let oneCCL cache its operations.", kept=True),
    Setting("HOROVOD_SPARK_START_TIMEOUT", int, 600, "Limit for Spark to start all tasks.", unit="seconds", minimum=0,
            maximum=_LONG_S, kept=True),
    Setting("HOROVOD_SPARK_PYTHONPATH", str, None, "Python path of Spark tasks started through MPI.", path=True,
            maximum=1 << 16, kept=True),
    Setting("HOROVOD_SPARK_WORK_DIR", str, None, "Working directory of Spark tasks started through MPI.", path=True,
            kept=True),
    Setting("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX", bool, False, "Spark estimators pick the GPU by local rank.",
            kept=True),
)
# fmt: on

TABLE: tuple[Setting, ...] = _TUNING + _AUTOTUNE + _OBSERVATION + _JOB + _SURVIVAL + _BACK_ENDS

# Read by Horovod's own build and tests: accepted and ignored, so that old build recipes raise no warnings.
BUILD_TIME_PREFIXES = (
    "HOROVOD_WITH_", "HOROVOD_WITHOUT_", "HOROVOD_GPU", "HOROVOD_ALLOW_MIXED_GPU_IMPL", "HOROVOD_CUDA_HOME",
    "HOROVOD_ROCM_HOME", "HOROVOD_NCCL_", "HOROVOD_NVTX_", "HOROVOD_BUILD_", "HOROVOD_CMAKE", "HOROVOD_DEBUG",
    "HOROVOD_SKIP_COMPILE", "HOROVOD_LOCAL_VERSION", "HOROVOD_TEST_", "HOROVOD_MIXED_INSTALL",
)  # fmt: skip
