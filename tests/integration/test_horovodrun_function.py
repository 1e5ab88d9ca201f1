# SPDX-License-Identifier: Apache-2.0
"""horovod.run: it calls a function on all ranks and returns the results in rank order."""

import gc
import linecache
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from testkit.processes import Process, run

import horovod


def rank():
    import os

    return int(os.environ["HOROVOD_RANK"])


def test_results_come_in_rank_order():
    assert horovod.run(lambda a, b=0: (rank(), a, b), args=(1,), kwargs={"b": 2}, num_proc=3) == [
        (0, 1, 2),
        (1, 1, 2),
        (2, 1, 2),
    ]


@pytest.mark.parametrize("elastic", [{}, {"min_num_proc": 1}])
def test_workers_have_the_gpus_that_the_environment_lists_or_rules_out(monkeypatch, elastic):
    chosen = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_CUDA_VISIBLE_DEVICES": "2,3"}
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)

    def devices(names):
        import os

        return {name: os.environ.get(name) for name in names}

    assert horovod.run(devices, args=(list(chosen),), num_proc=1, **elastic) == [chosen]


def test_users_signals_to_the_caller_reach_the_functions():
    def receive(caller):
        import os
        import signal
        import time

        import horovod.numpy as hvd

        # This is a list, because a handler that sets an Event could wait for a lock held by the interrupted thread.
        received = []
        signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
        hvd.init()
        hvd.barrier()
        if hvd.rank() == 0:
            os.kill(caller, signal.SIGUSR1)
        until = time.monotonic() + 20
        while not received and time.monotonic() < until:
            time.sleep(0.01)
        return bool(received)

    assert horovod.run(receive, args=(os.getpid(),), num_proc=2) == [True, True]


def test_closures_and_large_results_travel():
    factor = 3
    blob = b"x" * (20 << 20)
    [result] = horovod.run(lambda: blob * (factor - 2), num_proc=1)
    assert result == blob


def test_functions_of_modules_that_the_caller_can_import(tmp_path, monkeypatch):
    (tmp_path / "my_training_module.py").write_text("def train(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_training_module

    assert horovod.run(my_training_module.train, args=(1,), num_proc=2) == [2, 2]


def test_a_failing_worker_is_a_runtime_error_with_its_traceback():
    def train():
        if rank() == 1:
            raise KeyError("my own bug")
        import signal

        signal.pause()

    with pytest.raises(RuntimeError) as caught:
        horovod.run(train, num_proc=2)
    text = str(caught.value)
    assert text.startswith("Horovod detected that one or more processes exited with non-zero status")
    assert "rank 1" in text
    assert "KeyError: 'my own bug'" in text
    assert "in train" in text


def test_a_killed_worker_is_named():
    def train():
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RuntimeError, match=r"rank 0 .*killed by signal 9 \(SIGKILL\)"):
        horovod.run(train)


def test_a_result_that_cannot_travel_is_named():
    with pytest.raises(RuntimeError, match="pickle"):
        horovod.run(lambda: __import__("threading").Lock())


def test_a_worker_that_leaves_early_is_named():
    with pytest.raises(RuntimeError, match="rank 0 ended with exit code 0 before the function returned"):
        horovod.run(lambda: __import__("os")._exit(0))


def test_output_goes_to_the_callers_stdout(capsys):
    horovod.run(lambda: print("hello"), num_proc=2)
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0]<stdout>:hello", "[1]<stdout>:hello"]


def test_in_a_notebook_lines_have_no_tags_and_errors_show_the_line_of_the_cell(capsys, monkeypatch):
    """Simulate a function from a notebook cell, whose file exists only in linecache."""
    source = "def train():\n    print('hello')\n    return 1 / zero  # the line of the cell\n"
    name = "/tmp/ipykernel_1/2345.py"
    compiler = SimpleNamespace(format_code_name=lambda file: ("Cell", "In[7]") if file == name else None)
    shell = SimpleNamespace(kernel=object(), compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
    cell = {"__name__": "__main__", "zero": 0}
    exec(compile(source, name, "exec"), cell)
    with pytest.raises(RuntimeError) as caught:
        horovod.run(cell["train"], num_proc=2)
    assert "Cell In[7], line 3, in train\n    return 1 / zero  # the line of the cell\n" in str(caught.value)
    assert "run_task.py" not in str(caught.value)
    shown = capsys.readouterr()
    assert "hello\n" in shown.out
    assert "<stdout>" not in shown.out
    assert "<stderr>" not in shown.err
    with pytest.raises(ValueError, match="tag must be auto, always or never, not 'some'"):
        horovod.run(rank, tag="some")


SPAWNED = """
import multiprocessing
from dataclasses import dataclass
import horovod

FACTOR = 3

@dataclass
class Result:
    rank: int

def train():
    import horovod.numpy as hvd
    hvd.init()
    return Result(FACTOR * hvd.rank())

def launch(queue):
    results = horovod.run(train, num_proc=2)
    queue.put([(type(result) is Result, result.rank) for result in results])

if __name__ == "__main__":
    for kind, daemon in (("spawn", False), ("forkserver", True)):
        context = multiprocessing.get_context(kind)
        queue = context.Queue()
        child = context.Process(target=launch, args=(queue,), daemon=daemon)
        child.start()
        child.join()
        print(child.exitcode, queue.get())
"""


def test_it_runs_in_a_spawned_child_whose_functions_are_those_of_the_main_module(tmp_path):
    (tmp_path / "program.py").write_text(SPAWNED)
    done = run([sys.executable, str(tmp_path / "program.py")], limit_s=50)
    assert done.stdout.splitlines() == ["0 [(True, 0), (True, 3)]"] * 2, done.stderr


def test_it_runs_in_a_thread_too():
    results = []
    thread = threading.Thread(target=lambda: results.append(horovod.run(rank, num_proc=2)))
    thread.start()
    thread.join(timeout=40)
    assert results == [[0, 1]]


def test_old_names_are_deprecated_and_work():
    with pytest.warns(DeprecationWarning, match="np is deprecated, use num_proc"):
        assert horovod.run(rank, np=2) == [0, 1]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"hosts": "localhost:1", "hostfile": "f"}, ValueError, "hosts and hostfile"),
        ({"hostfile": "/no/such/file"}, FileNotFoundError, "hostfile '/no/such/file' .--hostfile.: No such file"),
        ({"output_filename": ""}, ValueError, "--output-filename is empty: name a directory .* leave output_filename"),
        ({"use_gloo": True, "use_mpi": True}, ValueError, "use_gloo and use_mpi"),
        ({"num_proc": 0}, ValueError, "at least 1"),
        ({"hosts": "localhost:1", "num_proc": 2}, ValueError, "Requested more processes"),
        ({"min_num_proc": 2}, ValueError, "must be in ascending order"),
        ({"min_num_proc": 1, "use_mpi": True}, NotImplementedError, "through mpirun or jsrun is not available"),
    ],
)
def test_bad_options(options, error, text):
    with pytest.raises(error, match=text):
        horovod.run(rank, **options)


def test_nothing_changes_for_the_caller():
    gc.collect()  # close objects of earlier tests now, so that the counts below stay stable
    earlier = threading.enumerate()
    before = signal.getsignal(signal.SIGINT), len(os.listdir("/proc/self/fd"))
    horovod.run(rank, num_proc=2)
    assert (signal.getsignal(signal.SIGINT), len(os.listdir("/proc/self/fd"))) == before
    for thread in set(threading.enumerate()) - set(earlier):
        thread.join(20)  # a call waits only a moment for its writer threads, which end by themselves
    assert set(threading.enumerate()) <= set(earlier)


def test_it_works_from_a_prompt_and_ctrl_c_is_a_keyboard_interrupt():
    source = (
        "import horovod\n"
        "print(horovod.run(lambda: 5, num_proc=2))\n"
        "try: horovod.run(lambda: (print('waiting'), __import__('signal').pause()))\n"
        "except KeyboardInterrupt: print('interrupted')\n\n"
    )
    prompt = [sys.executable, "-i", "-q"]
    with Process(prompt, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write(source)
        process.stdin.flush()
        assert process.stdout.readline() == "[5, 5]\n"
        assert process.stdout.readline() == "[0]<stdout>:waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        process.stdin.close()
        assert process.wait(timeout=20) == 0
