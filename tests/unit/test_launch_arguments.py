# SPDX-License-Identifier: Apache-2.0
"""horovodrun's command line and config file: accepted values, precedence, and refusals with their messages."""

import re
import warnings

import pytest

from horovod.launcher.checks import refuse_unavailable
from horovod.launcher.launch import _main, parse_args
from horovod.launcher.options import JobOptions
from horovod.launcher.remote.environment import that_travel
from horovod.launcher.start.worker_environment import (
    base_environment,
    flag_environment,
    is_exportable,
    overruled_settings,
    shared_gpus_notice,
)

COMMAND = ["python", "train.py"]


def parse(*words):
    return parse_args(["-np", "2", *words, *COMMAND])


def environment(*words):
    return flag_environment(JobOptions.of(vars(parse(*words))))


def config(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


def test_the_command_begins_at_the_first_word_that_is_no_flag():
    args = parse_args(["-np", "4", "--verbose", "python", "-u", "train.py", "--log", "x", "--np", "7", "-H", "$(x); y"])
    assert args.num_proc == 4
    assert args.verbose is True
    assert args.command == ["python", "-u", "train.py", "--log", "x", "--np", "7", "-H", "$(x); y"]


def test_two_dashes_end_the_flags():
    assert parse_args(["-np", "1", "--", "-odd-program", "--", "x"]).command == ["-odd-program", "--", "x"]


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--num-proc", "3"], "num_proc", 3),
        (["--num-proc=3"], "num_proc", 3),
        (["--num-p", "3"], "num_proc", 3),
        (["-H", "localhost:2"], "hosts", "localhost:2"),
        (["-hostfile", "f"], "hostfile", "f"),
        (["-p", "22"], "ssh_port", 22),
        (["-i", "key"], "ssh_identity_file", "key"),
        (["-prefix-timestamp"], "prefix_output_with_timestamp", True),
        (["--prefix-output"], "prefix_output_with_timestamp", True),
        (["--min-np", "2"], "min_num_proc", 2),
        (["--max-num-proc", "2"], "max_num_proc", 2),
        (["--blacklist-cooldown-range", "1", "10"], "cooldown_range", [1, 10]),
        (["--fusion", "32"], "fusion_threshold_mb", 32),
        (["--network-interfaces", "lo,eth0"], "nics", ["lo", "eth0"]),
        (["--network-interface", "lo", "--network-interface", "eth0"], "nics", ["lo", "eth0"]),
        (["--log-level", "debug"], "log_level", "DEBUG"),
        (["--mpi-args=-x --y"], "mpi_args", "-x --y"),
    ],
)
def test_flags_and_abbreviations(words, name, value):
    assert getattr(parse(*words), name) == value


def test_a_comma_list_for_the_single_interface_flag_is_deprecated():
    with pytest.warns(DeprecationWarning, match="--network-interfaces"):
        assert parse("--network-interface", "lo,eth0").nics == ["lo", "eth0"]


@pytest.mark.parametrize(
    "words",
    [
        ["-H", "a:1", "-hostfile", "f"],
        ["--gloo", "--mpi"],
        ["--no-such-flag"],
        ["--auto"],
        ["--ssh-port", "22_0"],
        ["--ssh-port", "9" * 10_000],
    ],
)
def test_argparse_refuses(words, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert "horovodrun: error:" in shown
    assert len(shown) < 500


def test_the_number_is_required(capsys):
    with pytest.raises(SystemExit):
        parse_args(["python", "x.py"])
    assert "error:" in capsys.readouterr().err


def test_a_command_is_required_for_running_alone(capsys):
    assert parse_args(["-np", "2"]).command == []
    assert _main(["-np", "2"]) == 2
    assert "horovodrun: error: no command given: what should every rank run?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--fusion-threshold-mb", "-1"], "--fusion-threshold-mb='-1' .* from 0 to 1048576; the nearest is 0"),
        (["--fusion-threshold-mb", "9" * 30], "integer of MiB from 0 to 1048576; the nearest is 1048576"),
        (["--cycle-time-ms", "-0.5"], "--cycle-time-ms"),
        (["--cycle-time-ms=--"], "--cycle-time-ms='--' is not valid: expected a number of milliseconds from 0"),
        (["--cycle-time-ms", "nan"], "--cycle-time-ms='nan' is not valid: expected a number of milliseconds from 0"),
        (["--cycle-time-ms", "fast"], "--cycle-time-ms='fast'"),
        (["--cycle-time-ms", ""], "--cycle-time-ms=''"),
        (["--log-level", "WARN"], "--log-level='WARN' .*; the nearest is warning"),
        (["--timeline-filename", "a\0b"], "--timeline-filename='a.x00b'"),
        (["--start-timeout", "1e9"], "--start-timeout='1e9' .* seconds from 0 to 2000000"),
        (["--cache-capacity", "-1"], "--cache-capacity"),
        (["--autotune-warmup-samples", "-1"], "--autotune-warmup-samples"),
        (["--autotune-gaussian-process-noise", "1.5"], "'1.5' is not valid: expected a number from 0 to 1"),
        (["--num-nccl-streams", "0"], "--num-nccl-streams"),
        (["-np", "0"], "-np must be at least 1"),
        (["--blacklist-cooldown-range", "10", "1"], "min <= max"),
        (["--blacklist-cooldown-range", "0", "1"], "min <= max"),
        (["--reset-limit", "-1"], r"--reset-limit \(reset_limit\) must be at least 0, not -1"),
        (["--elastic-timeout", "0"], "--elastic-timeout='0' .* an integer of seconds from 1 to 2000000"),
        (["--output-filename", ""], "^--output-filename is empty: name a directory for the workers' output"),
        (["--output-filename="], "^--output-filename is empty"),
    ],
)
def test_values_out_of_range_are_value_errors(words, text):
    with pytest.raises(ValueError, match=text):
        parse(*words)


def test_flags_become_variables_only_when_given():
    assert environment() == {}
    assert environment("--fusion-threshold-mb", "32", "--cycle-time-ms", "3.5", "--cache-capacity", "0") == {
        "HOROVOD_FUSION_THRESHOLD": "33554432",
        "HOROVOD_CYCLE_TIME": "3.5",
        "HOROVOD_CACHE_CAPACITY": "0",
    }


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--hierarchical-allreduce"], "HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),
        (["--no-hierarchical-allreduce"], "HOROVOD_HIERARCHICAL_ALLREDUCE", "0"),
        (["--hierarchical-allgather"], "HOROVOD_HIERARCHICAL_ALLGATHER", "1"),
        (["--no-hierarchical-allgather"], "HOROVOD_HIERARCHICAL_ALLGATHER", "0"),
        (["--no-stall-check"], "HOROVOD_STALL_CHECK_DISABLE", "1"),
        (["--stall-check"], "HOROVOD_STALL_CHECK_DISABLE", "0"),
        (["--log-without-timestamp"], "HOROVOD_LOG_HIDE_TIME", "1"),
        (["--log-with-timestamp"], "HOROVOD_LOG_HIDE_TIME", "0"),
        (["--log-hide-timestamp"], "HOROVOD_LOG_HIDE_TIME", "1"),
        (["--gloo-timeout-seconds", "60"], "HOROVOD_GLOO_TIMEOUT_SECONDS", "60"),
        (["--tcp"], "NCCL_IB_DISABLE", "1"),
        (["--start-timeout", "9"], "HOROVOD_START_TIMEOUT", "9"),
    ],
)
def test_each_flag_sets_its_variable(words, name, value):
    assert environment(*words) == {name: value}


def test_autotune_variables_need_autotune_and_marks_need_a_timeline():
    assert environment("--autotune-log-file", "f", "--timeline-mark-cycles") == {}
    assert environment("--autotune", "--autotune-log-file", "f") == {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "f",
    }
    assert environment("--timeline-filename", "t", "--timeline-mark-cycles") == {
        "HOROVOD_TIMELINE": "t",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
    }


def test_a_stall_shutdown_before_the_warning_is_ignored_with_a_word(capsys):
    assert environment("--stall-check-shutdown-time-seconds", "10") == {}
    assert "ignored" in capsys.readouterr().err


FULL = """
controller: gloo
params: {fusion_threshold_mb: 16, cycle_time_ms: 2.5, hierarchical_allreduce: true}
autotune:
  enabled: true
  gaussian_process_noise: 0.5
stall_check: {enabled: false}
library_options: {num_nccl_streams: 2, thread_affinity: 3}
logging: {level: info, with_timestamp: false}
timeline:
"""


def test_the_config_file_gives_what_the_command_line_does_not(tmp_path):
    assert environment("--config-file", config(tmp_path, FULL)) == {
        "HOROVOD_FUSION_THRESHOLD": str(16 * 1024 * 1024),
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.5",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_NUM_NCCL_STREAMS": "2",
        "HOROVOD_THREAD_AFFINITY": "3",
        "HOROVOD_LOG_LEVEL": "info",
        "HOROVOD_LOG_HIDE_TIME": "1",
    }


def test_a_thread_affinity_of_one_number_is_an_int(tmp_path):
    for words in (["--thread-affinity", "3"], ["--config-file", config(tmp_path, FULL)]):
        value = parse(*words).thread_affinity
        assert (value, type(value)) == (3, int)
        assert environment(*words)["HOROVOD_THREAD_AFFINITY"] == "3"
    assert parse("--thread-affinity", "2,3").thread_affinity == "2,3"  # one core for each local rank
    assert parse().thread_affinity is None


@pytest.mark.parametrize("before", [True, False])
def test_the_command_line_wins_wherever_it_stands(tmp_path, before):
    flags = ["--fusion-threshold-mb", "8", "--no-hierarchical-allreduce", "--mpi"]
    file = ["--config-file", config(tmp_path, FULL)]
    args = parse(*flags, *file) if before else parse(*file, *flags)
    assert args.fusion_threshold_mb == 8
    assert args.hierarchical_allreduce is False
    assert (args.use_mpi, args.use_gloo) == (True, None)
    assert args.cycle_time_ms == 2.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params:\n  cycle_time_ms: fast", r":2: params.cycle_time_ms='fast' .* a number of milliseconds"),
        ("params:\n  cache_capacity: 1.5", r":2: params.cache_capacity='1.5' is not valid: expected an integer"),
        ("params:\n  cache_capacity: 0x10", r":2: params.cache_capacity='0x10' is not valid"),
        ("params:\n  cache_capacity: 1:30", r":2: params.cache_capacity='1:30' is not valid"),
        ("params:\n  fusion_threshold_mb: " + "9" * 10_000, r":2: .*\(10000 characters\).*; the nearest is 1048576"),
        ("params:\n  hierarchical_allreduce: 1", r":2: .* expected true or false"),
        ("params:\n  hierarchical_allreduce: !!bool maybe", r":2: .*='maybe' is not valid: expected true or false"),
        ("params:\n  cycle_time_ms: !!null 1", r":2: params.cycle_time_ms='1'"),
        ("timeline:\n  filename: [a, b]", r":2: timeline.filename='a list or a mapping' is not valid: expected a file"),
        ('timeline:\n  filename: "a\\0b"', r":2: timeline.filename='a.x00b'"),
        ('timeline:\n  filename: "a\\ud800b"', r":2: timeline.filename='a.ud800b'"),
        ("? [a, b]\n: 1", r":1: a key must be a word"),
        ("controller: mpd", r":1: controller must be one of gloo, mpi, not 'mpd'"),
        ("params: [1]", r":1: expected 'key: value'"),
        ("params: {a: 1", r":\d: not valid YAML"),
        ("params: {cache_capacity: 1}\nparams: {}", r":2: 'params' is given twice"),
        ("autotune: {gaussian_process_noise: 7}", r":1: autotune.gaussian_process_noise='7' .* from 0 to 1"),
        ("# so deep\n" + "[" * 100_000, r":2: not valid YAML: nested too deeply"),
        ("\n".join(" " * n + "a:" for n in range(1200)), r":\d+: not valid YAML: nested too deeply"),
        ("\na: \x01", r":2: not valid YAML: special characters are not allowed"),
        ('a:\n "\\UFFFFFFFF"', r":2: not valid YAML"),
        ("%YAML " + "9" * 5000 + ".1\n---\na: 1", r":1: not valid YAML"),
        ("a: *" + "b" * 100_000, r"^.{0,500}$"),
        ("x" * (1 << 21), r"more than 1048576 bytes"),
        ("params: !!python/object/apply:os.system ['x']", r":1: "),
    ],
)
def test_fault_30_a_bad_file_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        parse("--config-file", config(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "params: {fusion_treshold_mb: 1}",
            r":1: unknown key .* is ignored; did you mean 'params.fusion_threshold_mb'",
        ),
        ("param:\n  cache_capacity: 1", r":1: unknown key 'param' is ignored; did you mean 'params'"),
        ("logging:\n  hide_timestamp: true", r":2: unknown key .*'logging.with_timestamp'"),
        ("qqqq: [[1], {a: b}]", r":1: unknown key 'qqqq' is ignored; known keys: autotune, "),
    ],
)
def test_an_unknown_key_is_a_warning(tmp_path, capsys, text, message):
    known = "\ntimeline:\n  filename: t.json\n"
    assert parse("--config-file", config(tmp_path, text + known)).timeline_filename == "t.json"
    assert re.search(r"^horovodrun: warning: .*config.yaml" + message, capsys.readouterr().err)
    parse("--log-level", "ERROR", "--config-file", config(tmp_path, text + known))
    assert capsys.readouterr().err == ""


def test_many_unknown_keys_are_counted(tmp_path, capsys):
    parse("--config-file", config(tmp_path, "".join(f"key{number}: 1\n" for number in range(20_000))))
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 21
    assert shown[-1].endswith("config.yaml: 19980 more unknown keys are ignored")


def test_aliases_make_no_small_file_large(tmp_path):
    """The aliases would expand to ten thousand million words."""
    lists = ["&a0 [x, x, x, x, x, x, x, x, x, x]"]
    lists += [f"&a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    bomb = f"[{', '.join(lists)}]"
    with pytest.raises(ValueError, match=r":2: params.cycle_time_ms='a list or a mapping' is not valid"):
        parse("--config-file", config(tmp_path, f"params:\n  cycle_time_ms: {bomb}"))
    with pytest.raises(ValueError, match=r":2: a key must be a word, not a list or a mapping"):
        parse("--config-file", config(tmp_path, f"params:\n  ? {bomb}\n  : 1"))


def test_a_file_that_is_no_text_is_refused_with_its_line(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(b"params:\n  cache_capacity: \xff1")
    with pytest.raises(ValueError, match=r"config.yaml:2: not UTF-8 text"):
        parse("--config-file", str(path))


@pytest.mark.parametrize(
    ("name", "value"), [("HOROVOD_CYCLE_TIME", "abc"), ("HOROVOD_CACHE_CAPACITY", "-1"), ("HOROVOD_LOG_LEVEL", "loud")]
)
def test_fault_30_a_bad_variable_is_refused_before_anything_starts(name, value):
    with pytest.raises(ValueError, match=name):
        base_environment({name: value})


def test_workers_of_this_host_inherit_the_environment_and_its_gpus():
    dropped = {"BASH_FUNC_x%%": "() { :; }", "OLDPWD": "/", "_HOROVOD_SECRET_KEY": "old"}
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "", "NVIDIA_CUDA_VISIBLE_DEVICES": "2,3"}
    added = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    assert base_environment(kept | dropped) == kept | added
    assert base_environment({"PYTHONFAULTHANDLER": ""})["PYTHONFAULTHANDLER"] == "", "the user's choice stands"


@pytest.mark.parametrize(
    ("name", "other"),
    [("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"), ("HOROVOD_CPU_OPERATIONS", "HOROVOD_CONTROLLER")],
)
@pytest.mark.parametrize("value", ["mpi", "MPI", "ccl"])
def test_settings_that_ask_for_mpi_are_named(name, other, value):
    lines = overruled_settings({name: value, other: "gloo"}, JobOptions.of(vars(parse("-np", "1"))))
    assert lines == [f"{name}={value} has no effect: horovodrun uses gloo unless it is started with --mpi"]


def test_the_launchers_gpus_do_not_travel_to_other_hosts():
    assert that_travel({"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "2", "X_CUDA_VISIBLE_DEVICES": ""}) == {"PATH": "/bin"}
    assert not is_exportable("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("listed", "ranks", "gpus"),
    [("2,3", 4, "2 GPUs"), ("2", 2, "1 GPU "), ("0,-1,1", 2, "1 GPU "), ("GPU-a,GPU-b", 3, "2 GPUs")],
)
def test_a_list_with_fewer_gpus_than_ranks_gets_a_line(listed, ranks, gpus):
    assert f"CUDA_VISIBLE_DEVICES={listed} lists {gpus}" in shared_gpus_notice({"CUDA_VISIBLE_DEVICES": listed}, ranks)


@pytest.mark.parametrize("environ", [{}, *({"CUDA_VISIBLE_DEVICES": listed} for listed in ("", "-1", "2,3", "0,1,2"))])
def test_enough_gpus_or_none_get_no_line(environ):
    assert shared_gpus_notice(environ, 2) is None


@pytest.mark.parametrize(
    "words", [["--min-np", "1", "--mpi"], ["--host-discovery-script", "x", "--mpi"], ["--min-np", "1", "--jsrun"]]
)
def test_what_is_not_there_yet_says_so(words):
    with pytest.raises(NotImplementedError, match="not available"):
        refuse_unavailable(JobOptions.of(vars(parse(*words))))


def test_version_and_check_build_need_no_number():
    with warnings.catch_warnings():
        assert parse_args(["-v"]).version
        assert parse_args(["-cb"]).check_build
