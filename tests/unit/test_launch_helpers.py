# SPDX-License-Identifier: Apache-2.0
"""Launcher helpers under Horovod's import paths: commands, threads, pipes, caches, hosts, settings."""

import io
import multiprocessing
import os
import re
import socketserver
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest
from testkit.families import living
from testkit.speed import patience

from horovod.common import basics, process_sets
from horovod.common.util import _cache
from horovod.launcher.start.hosts import SlotInfo
from horovod.runner import _HorovodArgs, gloo_run, js_run, mpi_run
from horovod.runner.common.util import codec, config_parser, host_hash, safe_shell_exec, settings, tiny_shell_exec
from horovod.runner.elastic.settings import ElasticSettings
from horovod.runner.util import network, remote
from horovod.runner.util.cache import Cache, use_cache
from horovod.runner.util.streams import Pipe
from horovod.runner.util.threads import execute_function_multithreaded, in_thread, on_event

LIMIT_S = 20


def test_a_command_is_run_and_its_output_prefixed():
    out, err = io.StringIO(), io.StringIO()
    code = safe_shell_exec.execute(
        'echo "one $WHAT"; printf "two\\rthree"; echo four >&2; exit 3',
        env={**os.environ, "WHAT": "word"},
        stdout=out,
        stderr=err,
        index=1,
    )
    assert (code, out.getvalue(), err.getvalue()) == (
        3,
        "[1]<stdout>:one word\n[1]<stdout>:two\r[1]<stdout>:three",
        "[1]<stderr>:four\n",
    )


def test_a_command_ends_with_all_it_started_when_an_event_is_set():
    event, out = threading.Event(), Pipe()
    result: list[int] = []
    command = f"{sys.executable} -c 'import os, time; print(os.getpid(), flush=True); time.sleep(600)' & sleep 600"
    thread = in_thread(
        lambda: result.append(safe_shell_exec.execute(command, stdout=out, stderr=io.StringIO(), events=[event]))
    )
    child = int(out.read(timeout=LIMIT_S) or "")
    event.set()
    thread.join(LIMIT_S)
    assert result == [143]
    assert not psutil.pid_exists(child)


def test_a_command_that_cannot_be_started_says_so():
    with pytest.raises(FileNotFoundError, match="nonsense-of-a-program"):
        safe_shell_exec.execute(["nonsense-of-a-program"])
    assert tiny_shell_exec.execute("echo out; echo err >&2; exit 4") == ("out\nerr\n", 4)


def test_prefixes_from_a_descriptor_a_connection_and_with_the_time():
    read, write = os.pipe()
    os.write(write, "a\r\nü".encode())
    os.close(write)
    out = io.StringIO()
    safe_shell_exec.prefix_connection(read, out, "stderr", 2, False)
    os.close(read)
    assert out.getvalue() == "[2]<stderr>:a\r\n[2]<stderr>:ü"
    near, far = multiprocessing.Pipe(duplex=False)
    far.send_bytes(b"x\n")
    far.close()
    out = io.StringIO()
    safe_shell_exec.prefix_connection(near, out, "stdout", 0, True)
    assert re.fullmatch(r"\w+ \w+ +\d+ [\d:]+ \d+\[0\]<stdout>:x\n", out.getvalue())
    out = io.StringIO()
    safe_shell_exec.prefix_connection(io.BytesIO(b"bare"), out, "stdout", None, True)
    assert out.getvalue() == "bare"


def test_a_shell_and_its_children_are_terminated():
    shell = subprocess.Popen(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    child = psutil.Process(int(shell.stdout.readline()))
    safe_shell_exec.terminate_executor_shell_and_children(shell.pid)
    shell.wait(LIMIT_S)
    shell.stdout.close()
    assert not living([child], limit_s=LIMIT_S)
    safe_shell_exec.terminate_executor_shell_and_children(shell.pid)  # the shell has ended, so nothing happens


def test_threads():
    event, stop = threading.Event(), threading.Event()
    called: list[int] = []
    waiting = on_event(event, called.append, (1,), stop=stop, check_stop_interval_s=0.01)
    event.set()
    waiting.join(LIMIT_S)
    assert called == [1]
    stop.set()
    on_event(threading.Event(), called.append, (2,), stop=stop, check_stop_interval_s=0.01).join(LIMIT_S)
    assert called == [1]
    with pytest.raises(ValueError, match="needs an event"):
        on_event(None, called.append)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=re.escape("args must be a tuple or a list, not 'abc'; for a single argument")):
        in_thread(print, "abc")
    assert execute_function_multithreaded(lambda a, b: a + b, [[1, 2], [3, 4]]) == {0: 3, 1: 7}
    with pytest.raises(ZeroDivisionError):
        execute_function_multithreaded(lambda: 1 / 0, [[]])


def test_a_pipe_between_threads():
    pipe = Pipe(length=3)
    pipe.write("abcd")
    writer = in_thread(pipe.write, ("ef",))
    assert pipe.read(2) == "ab"
    writer.join(LIMIT_S)
    assert pipe.read() == "cdef"
    with pytest.raises(TimeoutError, match="nothing was written"):
        pipe.read(timeout=0.01)
    pipe.close()
    assert pipe.read() is None
    with pytest.raises(OSError, match="closed"):
        pipe.write("g")


def test_a_pipe_passes_bytes_and_text_between_one_writer_and_one_reader():
    pipe = Pipe(length=1)
    sent = [b"\0\xff", b"more", "text", "ü", b"", b"end"]
    writer = in_thread(lambda: [pipe.write(part) for part in sent] and pipe.close())
    received: list[str | bytes] = []
    while (part := pipe.read(timeout=LIMIT_S)) is not None:
        received.append(part)
    writer.join(LIMIT_S)
    assert b"".join(part for part in received if isinstance(part, bytes)) == b"\0\xffmoreend"
    assert "".join(part for part in received if isinstance(part, str)) == "textü"
    mixed = Pipe()
    for part in (b"ab", bytearray(b"c"), "d", b"e"):
        mixed.write(part)
    assert [mixed.read(2), mixed.read(), mixed.read(0), mixed.read(), mixed.read()] == [b"ab", b"c", "", "d", b"e"]


class Watched(threading.Condition):
    """Condition that sets `entered` when a thread waits. The thread holds the lock until it really waits."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.entered.set()
        return super().wait(timeout)


def test_closing_a_pipe_wakes_the_reader_and_the_writer():
    def write(pipe: Pipe) -> None:
        with pytest.raises(OSError, match="the pipe is closed"):
            pipe.write(b"y")

    for use in (lambda pipe: pipe.read(), write):
        pipe = Pipe(length=1)
        pipe._changed = watched = Watched()
        if use is write:
            pipe.write(b"x")
        returned: list[object] = []
        thread = in_thread(lambda use=use, pipe=pipe, returned=returned: returned.append(use(pipe)))
        assert watched.entered.wait(patience(LIMIT_S))
        pipe.close()
        thread.join(patience(LIMIT_S))
        assert returned == [None]
        assert pipe.read() == (b"x" if use is write else None)
        assert pipe.read() is None


def test_a_cache_outlives_its_object_but_not_its_age_and_parameters(tmp_path):
    calls: list[int] = []

    @use_cache()
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    cache = Cache(str(tmp_path), 60, "parameters")
    assert [double(1, fn_cache=cache), double(1, fn_cache=cache), double(2, fn_cache=cache), double(1)] == [2, 2, 4, 2]
    assert double(1, fn_cache=Cache(str(tmp_path), 60, "parameters")) == 2
    assert calls == [1, 2, 1]
    assert Cache(str(tmp_path), 60, "others").get("x") is None
    assert double(1, fn_cache=Cache(str(tmp_path), 0, "parameters")) == 2
    assert calls == [1, 2, 1, 1]
    (tmp_path / "cache.bin").write_bytes(b"rubbish")
    assert Cache(str(tmp_path), 60, "parameters").get("x") is None


def test_hosts_and_commands_for_them():
    assert re.fullmatch(r"[^.]*-[0-9a-f]{32}", host_hash.host_hash())
    assert host_hash.host_hash() == host_hash.host_hash() != host_hash.host_hash("salt")
    assert "127.0.0.1" in network.get_local_host_addresses()
    assert network.filter_local_addresses(["localhost", "no-such-host.invalid"]) == []
    assert network.get_driver_ip(network.get_local_intfs()) == "127.0.0.1"
    server, port = network.find_port(lambda address: socketserver.TCPServer(address, socketserver.BaseRequestHandler))
    with server:
        assert port == server.server_address[1] > 0
    assert remote.get_remote_command("echo 'a b'", "h1", port=22, identity_file="/k", timeout_s=10) == (
        "ssh -o PasswordAuthentication=no -o ConnectTimeout=10 -p 22 -i /k h1 'echo '\"'\"'a b'\"'\"''"
    )


def test_settings_and_the_config_as_objects():
    assert settings.Settings(hosts="a:1", num_proc=1).num_proc == 1
    elastic = ElasticSettings("discovery", 1, 4, 600, None, num_proc=2)
    assert (elastic.min_num_proc, elastic.max_num_proc, elastic.num_proc, elastic.elastic) == (1, 4, 2, True)
    args = _HorovodArgs(num_proc=2)
    assert (args.num_proc, args.cycle_time_ms, args.verbose, args.command) == (2, None, False, None)
    args.cycle_time_ms = 3.0
    config = {"params": {"cycle_time_ms": 2, "fusion_threshold_mb": 4}, "stall_check": {"enabled": False}}
    config_parser.set_args_from_config(args, config, {"cycle_time_ms"})
    config_parser.validate_config_args(args)
    assert config_parser.set_env_from_args({}, args) == {
        "HOROVOD_CYCLE_TIME": "3",
        "HOROVOD_FUSION_THRESHOLD": str(4 << 20),
        "HOROVOD_STALL_CHECK_DISABLE": "1",
    }
    args.cache_capacity = -1
    with pytest.raises(ValueError, match="cache-capacity"):
        config_parser.validate_config_args(args)
    with pytest.raises(ValueError, match="controller must be one of gloo, mpi"):
        config_parser.set_args_from_config(args, {"controller": "carrier pigeon"}, set())
    assert config_parser.LOG_LEVELS == ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]


def test_parts_of_launchers(tmp_path):
    slot = SlotInfo(hostname="h", rank=1, local_rank=1, cross_rank=0, size=2, local_size=2, cross_size=1)
    assert gloo_run.create_slot_env_vars(slot)["HOROVOD_RANK"] == "1"
    assert gloo_run.create_run_env_vars("1.2.3.4", ["eth0"], 99, elastic=True)["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "99"
    files = [io.StringIO(), io.StringIO()]
    gloo_run.MultiFile(files).write("x")
    assert [file.getvalue() for file in files] == ["x", "x"]
    empty = {"PATH": str(tmp_path)}
    assert not mpi_run.mpi_available(empty)
    for text, is_it in (("mpirun (Open MPI) 5.0", mpi_run.is_open_mpi), ("HYDRA build details", mpi_run.is_mpich)):
        (tmp_path / "mpirun").write_text(f"#!/bin/sh\necho '{text}'\n", encoding="utf-8")
        (tmp_path / "mpirun").chmod(0o755)
        assert is_it(empty)
        assert not mpi_run.is_spectrum_mpi(empty)
    assert js_run.is_jsrun_installed() is False
    assert codec.loads_base64(codec.dumps_base64({"a": [1]})) == {"a": [1]}


def test_mpi_is_mpi4pys_where_that_is_installed(monkeypatch):
    theirs = SimpleNamespace(Comm=int)
    for package, found in ((None, None), (SimpleNamespace(MPI=theirs), theirs)):
        monkeypatch.setitem(sys.modules, "mpi4py", package)
        monkeypatch.delitem(sys.modules, "horovod.common.mpi", raising=False)
        assert basics.MPI is process_sets.MPI
        assert not isinstance([0, 1], basics.MPI.Comm)
        assert found is None or basics.MPI is found
    monkeypatch.delitem(sys.modules, "horovod.common.mpi")


def test_small_names_that_old_programs_use():
    calls: list[int] = []
    cached = _cache(lambda number: calls.append(number) or number)
    assert [cached(1), cached(1), cached(2)] == [1, 1, 2]
    assert calls == [1, 2]
    assert process_sets.HorovodBasics is basics.HorovodBasics
    fake = SimpleNamespace(registered_sets=SimpleNamespace(ranks_by_id=lambda: {0: [0, 1]}))
    assert basics.HorovodBasics(context=fake)._get_process_set_ids_and_ranks() == {0: [0, 1]}  # type: ignore[arg-type]
