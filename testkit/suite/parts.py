# SPDX-License-Identifier: Apache-2.0
"""List of the parts of `make test` and `make test-all`.

A part is one command. `make test` runs the parts of TEST; `make test-all` runs these and then the parts of REST, which
leave out tests that TEST has run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testkit.suite.selection import OldVersion, Pick

TORCH = {"HOROVOD_TEST_DOORS": "torch"}  # PyTorch is installed, so its tests must not be skipped
# Environments for parts of REST. LEFT selects the tests that TEST has not run, without those that must run alone, which
# ALONE selects.
LEFT = {"PYTEST_ARGS": "--selection=rest"}
ALONE = {"PYTEST_ARGS": "--selection=rest-promises"}
# Compile on one core, because another part runs beside it; the variables are for make and for cmake.
ONE_JOB = {"JOBS": "1", "CMAKE_BUILD_PARALLEL_LEVEL": "1"}


@dataclass(frozen=True)
class Part:
    """One command of the suite.

    Args:
        name: Short and unique; `make test-NAME` repeats it unless `repeat` names another command.
        title: Description for the summary.
        command: Words of the command; empty for pytest with the picks of this part.
        picks: Tests to run, if the command is empty.
        cores: How many of two cores it keeps busy; 0 if it mostly waits.
        is_alone: Run no other part at the same time, because it measures times that the product promises.
        after: Parts that must have succeeded before.
        env: Variables added to the environment.
        program: A file below the build folder. The part is left out if it has passed with this version of the file.
        is_setup: True if it builds or installs, so that its time is reported as such.
        is_download: True if it only downloads, so that its time is reported separately.
    """

    name: str
    title: str
    command: Sequence[str] = ()
    picks: Sequence[Pick] = ()
    cores: int = 1
    is_alone: bool = False
    after: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    program: str = ""
    is_setup: bool = False
    is_download: bool = False
    repeat: str = ""

    def words(self, python: Path) -> list[str]:
        """Return the command to start."""
        return list(self.command) or [str(python), "-m", "pytest", f"--selection={self.name}", *_folders(self.picks)]

    def repeated_by(self) -> str:
        """Return the shortest command that runs all of this part."""
        return self.repeat or (" ".join(self.command) if self.command else f"make test-{self.name}")


def _folders(picks: Sequence[Pick]) -> list[str]:
    """Return the folders and files to collect: the patterns up to their first wildcard."""
    roots = {
        pick.files if "*" not in pick.files else str(Path(pick.files.partition("*")[0] + "x").parent) for pick in picks
    }
    return sorted(root for root in roots if not any(other != root and root.startswith(f"{other}/") for other in roots))


SETUP = (
    Part("compilers", "what compiles the engine", ("make", "setup-build"), is_download=True),
    Part(
        "download",
        "packages that the tests need",
        ("make", "setup-download"),
        cores=0,
        after=("compilers",),
        is_download=True,
    ),
    Part(
        "package", "the engine and the wheel", ("make", "setup-package"), cores=2, after=("compilers",), is_setup=True
    ),
    Part("install", "the packages", ("make", "setup-tests"), after=("package", "download"), is_setup=True),
    Part(
        "engine-build",
        "the engine's unit tests",
        ("scripts/engine-tests", "--build"),
        after=("package",),
        is_setup=True,
        repeat="scripts/engine-tests --build",
    ),
)

ENGINE = Part(
    "engine",
    "the engine's unit tests",
    ("scripts/engine-tests",),
    after=("engine-build",),
    program="package/engine/engine_tests",
)

UNIT = Part(
    "unit",
    "Python's unit tests",
    picks=(Pick("tests/unit/*"),),
    after=("install",),
    env=TORCH,
    repeat="make test-unit",
)

_RANKS = ("tests/parallel/test_*.py", "tests/parallel/torch/*", "tests/parallel/torch_dist/*")

# Shared memory with 2 ranks runs every operation, dtype and reduction; 4 ranks and TCP run one body of each file.
RANKS = Part(
    "ranks",
    "NumPy and PyTorch with real ranks",
    picks=(
        *(Pick(files, worlds=("shm2",)) for files in _RANKS),
        *(Pick(files, worlds=("shm4",), first_only=True) for files in _RANKS),
        Pick("tests/parallel/test_allreduce.py", worlds=("tcp2",), first_only=True),
    ),
    after=("install",),
    env=TORCH,
    repeat="make test-ranks",
)

LAUNCHER = Part(
    "launcher",
    "horovodrun and hvd",
    picks=(
        Pick("tests/integration/test_horovodrun.py"),
        Pick("tests/integration/test_hvd_tools.py"),
    ),
    after=("install",),
    env=TORCH,
)

# Faults that need root (test_lost_hosts, test_slow_links) or minutes (test_soak, test_elastic_kills) are in REST.
_FAULTS = (
    "elastic",
    "ending_threads",
    "endurance",
    "idle",
    "mixed_versions",
    "odd_values",
    "restricted",
    "secrets",
    "strangers",
    "wrong_programs",
)

FAULTS = Part(
    "faults",
    "one test for each class of faults",
    picks=tuple(Pick(f"tests/faults/test_{name}.py", first_only=True) for name in _FAULTS),
    after=("install",),
    env=TORCH,
)

PROMISES = Part(
    "promises",
    "times that the product promises: ranks that are killed, frozen or raise; an elastic job that loses a worker",
    picks=(
        Pick(
            "tests/faults/test_lost_ranks.py", names=("test_fault_1*shared memory*", "test_fault_3*tcp*"), promises=True
        ),
        Pick("tests/faults/test_elastic.py", promises=True, first_only=True),
        Pick("tests/faults/test_leaving_ranks.py", promises=True, first_only=True),
        Pick("tests/integration/test_horovodrun.py", promises=True),
    ),
    is_alone=True,
    after=("install",),
    env=TORCH,
    repeat="make test-promises",
)

DOCS = Part(
    "docs",
    "the README's snippets",
    picks=(Pick("tests/integration/test_docs.py", names=("test_example?README.md*",)),),
    after=("install",),
    env=TORCH,
)

TEST = (*SETUP, ENGINE, UNIT, RANKS, LAUNCHER, FAULTS, DOCS, PROMISES)

# Two ranks in shared memory show how an old version of a framework differs. What is left out uses the framework only as
# other tests do, and takes long; the newest version runs it.
OLD = OldVersion(
    once_in="tests/parallel/*",
    modes=("eager", "function", "graph", "jit"),
    worlds=("tcp2", "shm4", "tcp4", "hosts3", "hosts4", "homes4"),
    left_out=(
        Pick("tests/unit/test_torch_codecs.py"),
        Pick("tests/parallel/torch/test_random_rounds.py"),
        Pick("tests/parallel/tensorflow/test_data_service.py"),
        Pick("tests/parallel/keras/test_programs.py", names=("test_tutorial*",)),
        Pick("tests/parallel/keras/test_keras_compression.py", names=("test_fit_and_what_the_backend_does_not_have*",)),
        Pick(
            "tests/parallel/tensorflow/test_tensorflow_compression.py",
            names=(
                "test_a_bad_value_on_one_rank*",
                "test_what_elastic_jobs_trace*",
                "test_what_is_refused*",
                "test_allreduce_without_feedback*",
                "test_sums_dense_steps*",
            ),
        ),
        Pick(
            "tests/parallel/tensorflow/test_several_models.py", names=("test_two_tapes*", "test_none_on_one_rank?shm*")
        ),
        Pick("tests/parallel/jax/test_jax_compression.py", names=("test_allreduce_without_feedback*",)),
        Pick("tests/parallel/jax/test_jax_compression_methods.py", names=("test_one_bit_adam_ends_its_warm_up*",)),
    ),
)

# Two parts compute while a third one mostly waits. Parts that often fail come first, and long ones do not come last.
# Limits inside tests grow with the load (testkit/speed), except for promised times, which end the list.
REST = (
    Part("tools", "linters, Lightning and Accelerate", ("make", "setup-tools"), is_setup=True),
    Part("newest", "TensorFlow, Keras and JAX", ("make", "setup-newest"), cores=0, after=("tools",), is_setup=True),
    Part("lint", "ruff, mypy, clang-format and our own rules", ("make", "lint"), after=("tools",)),
    Part("site", "the documentation's site", ("make", "docs"), after=("tools",)),
    Part("soak", "an elastic job under random faults", ("make", "test-soak"), cores=0, after=("tools",)),
    Part(
        "jobs",
        "the launcher, faults, MPI and the stand-ins for GPUs",
        ("make", "test-jobs"),
        after=("tools",),
        env=LEFT,
    ),
    Part(
        "asan-build",
        "the engine with ASan and UBSan",
        ("scripts/engine-tests", "address,undefined", "--build", "--delays"),
        after=("lint",),
        env=ONE_JOB,
        is_setup=True,
    ),
    Part(
        "asan",
        "the engine's unit tests under ASan and UBSan, with delays",
        ("make", "sanitize-address"),
        cores=0,
        after=("asan-build",),
    ),
    Part("tensorflow", "TensorFlow and Keras", ("make", "test-tensorflow"), after=("newest",)),
    Part(
        "hosts",
        "several hosts: ssh, Slurm, MPI (needs root)",
        ("make", "test-hosts"),
        cores=0,
        after=("tools",),
        env=LEFT,
    ),
    Part("tsan", "the engine's unit tests under TSan", ("make", "sanitize-thread"), after=("lint",), env=ONE_JOB),
    Part("all-ranks", "NumPy and PyTorch in all worlds", ("make", "test-ranks"), after=("tools",), env=LEFT),
    Part("jax", "JAX", ("make", "test-jax"), after=("newest",)),
    Part("mxnet", "MXNet", ("make", "test-mxnet"), after=("tools",)),
    Part("old-torch", "the oldest PyTorch", ("make", "test-old-torch"), after=("tools",)),
    Part("old-jax", "the oldest JAX", ("make", "test-old-jax"), after=("tools",)),
    Part("old-tensorflow", "the oldest TensorFlow", ("make", "test-old-tensorflow"), after=("tools",)),
    # Ray declares nodes dead that do not answer in time, so it is no third part beside two that compute.
    Part("ray", "Ray", ("make", "test-ray"), after=("tools",)),
    Part(
        "all-promises",
        "all times that the product promises",
        ("make", "test-promises"),
        is_alone=True,
        after=("tools",),
        env=ALONE,
    ),
)
