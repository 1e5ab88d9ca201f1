# SPDX-License-Identifier: Apache-2.0
"""Command lines that start remote agents, and the environment variables that they pass on."""

import shlex
import subprocess

import pytest
from testkit.speed import patience

from horovod.launcher.remote.command import (
    Reaching,
    agent_command,
    blaunch_command,
    program_of,
    ssh_command,
    to_try,
)
from horovod.launcher.remote.environment import that_travel
from horovod.launcher.remote.frames import GREETING, FrameError, FrameReader, pack
from horovod.launcher.remote.sessions import exit_code_of
from horovod.launcher.remote.slurm import gpus_by_node, srun_command
from horovod.launcher.start.allocation import expand_names, find_allocation
from horovod.launcher.start.hosts import HostInfo, SlotInfo
from horovod.launcher.start.post_mortem import exit_table

AGENT = f"exec {shlex.join(agent_command('/opt/python'))}"


def test_ssh():
    usual = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    assert ssh_command("h", Reaching(), "/opt/python", {}) == ["ssh", *usual, "h", AGENT]
    given = Reaching("ssh -F 'a b'", 2222, "key")
    expected = ["ssh", "-F", "a b", *usual, "-p", "2222", "-i", "key", "h", AGENT]
    assert ssh_command("h", given, "/opt/python", {}) == expected
    assert to_try(expected) == "ssh -F 'a b' -T -p 2222 -i key h 'exec /opt/python -m horovod.runner.agent --check'"


def test_words_survive_the_shell_over_there():
    line = ssh_command("h", Reaching(), "/my env/python", {"PYTHONPATH": "/a b:/c'd"})[-1]
    words = shlex.split(line)
    assert words == ["exec", "env", "PYTHONPATH=/a b:/c'd", *agent_command("/my env/python")]


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("ssh -F x", "ssh"),
        ("env -u A -u B blaunch h", "blaunch"),
        ("env SSH_AUTH_SOCK=/tmp/x ssh", "env"),
        ("env -i ssh", "env"),
        ("env", "env"),
    ],
)
def test_the_program_of_a_command_that_changes_the_environment(command, program):
    assert program_of(command.split()) == program


def test_the_end_of_a_child_that_is_gone_already_is_no_error():
    child = subprocess.Popen(["sh", "-c", "exit 3"])
    assert exit_code_of(child.pid, patience(30)) == 3
    child.wait()
    assert exit_code_of(child.pid, patience(30)) == 0


def test_kubeflow_containers_without_sshd():
    found = ssh_command("pod", Reaching(), "/opt/python", {"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"})
    assert found == ["/etc/mpi/kubexec.sh", "pod", AGENT]


def test_lsf():
    command = ["blaunch", "-no-shell", "h", "/opt/python", "-m", "horovod.runner.agent"]
    assert blaunch_command("h", "/opt/python", {"PATH": "/bin"}) == command
    environ = {"CUDA_VISIBLE_DEVICES": "2,3", "PATH": "/bin"}
    assert blaunch_command("h", "/opt/python", environ) == ["env", "-u", "CUDA_VISIBLE_DEVICES", *command]


def test_a_step_of_slurm_has_all_that_the_job_has_on_its_node():
    agent = agent_command("/opt/python")
    command = srun_command("h", agent, {"SLURM_JOB_ID": "1"}, {})
    assert command[:2] == ["srun", "--nodelist=h"]
    assert command[-3:] == agent
    assert to_try(command).endswith(" /opt/python -m horovod.runner.agent --check")
    of_tasks = {"SLURM_GPUS_PER_TASK": "1", "SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_ID": "1"}
    command = srun_command("h", agent, of_tasks, {"h": 4, "g": 2})
    assert command[:6] == ["env", "-u", "SLURM_CPUS_PER_TASK", "-u", "SLURM_GPUS_PER_TASK", "srun"]
    assert "--gpus-per-node=4" in command


def test_a_step_of_slurm_does_not_get_the_launchers_gpus():
    launchers = {"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "", "NVIDIA_CUDA_VISIBLE_DEVICES": "2,3", "PATH": "/bin"}
    command = srun_command("h", agent_command("/opt/python"), launchers, {})
    unset = ["-u", "CUDA_VISIBLE_DEVICES", "-u", "NVIDIA_CUDA_VISIBLE_DEVICES"]
    assert command[:6] == ["env", *unset, "srun"]


def test_which_node_has_how_many_gpus():
    text = """
   JOB_GRES=gpu:a100:6,shard:8
     Nodes=n[1-2] CPU_IDs=0-3 Mem=0 GRES=gpu:2(IDX:0-1)
     Nodes=m7 CPU_IDs=0 Mem=0 GRES=gpu:a100:3(IDX:0,2-3),shard:8(IDX:0),gpu:t4:1
     Nodes=x CPU_IDs=0 Mem=0 GRES=
   Command=Nodes=n9
"""
    assert gpus_by_node(text) == {"n1": 2, "n2": 2, "m7": 4}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,05],gpu7", ["n1", "n2", "n3", "n05", "gpu7"]),
        ("n[08-10]-ib,a,b[2]", ["n08-ib", "n09-ib", "n10-ib", "a", "b2"]),
    ],
)
def test_the_short_form_of_a_list_of_nodes(text, names):
    assert expand_names(text) == names


@pytest.mark.parametrize("text", ["n[1-]", "n[-3]", "n[1-99999999999]"])
def test_what_is_not_a_list_of_nodes(text):
    with pytest.raises(ValueError, match="is not a list of nodes"):
        expand_names(text)


def test_the_hosts_that_batch_systems_set_aside():
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "5", "SLURM_JOB_NODELIST": "n[1-3]"}
    found = find_allocation({**slurm, "SLURM_TASKS_PER_NODE": "2(x2),1"})
    assert found.hosts == (HostInfo("n1", 2), HostInfo("n2", 2), HostInfo("n3", 1))
    # The node list has three nodes, but the task counts are for one.
    assert find_allocation({**slurm, "SLURM_TASKS_PER_NODE": "5"}).hosts == ()
    with pytest.raises(ValueError, match="SLURM_TASKS_PER_NODE='2x2' is not a list"):
        find_allocation({**slurm, "SLURM_TASKS_PER_NODE": "2x2"})
    lsf = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a 4 b 2"}
    assert find_allocation(lsf).hosts == (HostInfo("a", 4), HostInfo("b", 2))
    with_launch_node = {"CSM_ALLOCATION_ID": "7", "LSB_MCPU_HOSTS": "batch5 1 a 4"}
    assert find_allocation(with_launch_node).hosts == (HostInfo("a", 4),)


def test_what_says_where_something_is_on_one_host_stays_there():
    environ = {"HOME": "/root", "SSH_AUTH_SOCK": "/tmp/x", "XDG_RUNTIME_DIR": "/run", "PATH": "/bin", "MODEL": "big"}
    assert that_travel(environ) == {"PATH": "/bin", "MODEL": "big"}


def test_messages_come_out_as_they_went_in_however_they_are_cut():
    data = b"Welcome!\n" + GREETING + pack("hello", {"a": 1}) + pack("output", 3, 0, b"\xff\0")
    for cut in range(len(data)):
        reader = FrameReader(after_greeting=True)
        found = [*reader.feed(data[:cut]), *reader.feed(data[cut:])]
        assert found == [["hello", {"a": 1}], ["output", 3, 0, b"\xff\0"]]
        assert reader.noise == b"Welcome!\n"


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", pack("x")[:4] + b"\xc1\xc1\xc1", (1).to_bytes(4, "little") + b"\x01", b"\1\0\0\0\x90"]
)
def test_what_is_not_a_message_is_refused(data):
    with pytest.raises(FrameError):
        list(FrameReader(after_greeting=False).feed(data))


def test_endless_noise_is_given_up():
    with pytest.raises(FrameError, match="no greeting in"):
        list(FrameReader(after_greeting=True).feed(b"x" * (1 << 19)))


def test_the_table_of_ends_begins_with_the_cause():
    slots = [SlotInfo("ab"[rank // 3], rank, rank % 3, 0, 6, 3, 2) for rank in range(6)]
    text = exit_table(slots, 4, {4: "exit code 3", 0: "ended by SIGTERM", 1: "ended by SIGTERM", 5: "lost"})
    assert text.splitlines() == [
        "how the workers ended:",
        "  rank  host  how it ended",
        "  4     b     exit code 3 (first)",
        "  0-1   a     ended by SIGTERM",
        "  2     a     exit code 0",
        "  3     b     exit code 0",
        "  5     b     lost",
    ]


def test_lsf_may_name_its_hosts_in_a_file(tmp_path):
    file = tmp_path / "ranks"
    file.write_text("a\na\nb\n")
    hosts = (HostInfo("a", 2), HostInfo("b", 1))
    for name in ("LSB_DJOB_RANKFILE", "LSB_DJOB_HOSTFILE"):
        found = find_allocation({"LSB_JOBID": "7", name: str(file)})
        assert found is not None
        assert (found.processes, found.hosts) == (3, hosts)


def test_what_slurm_says_of_one_node_stays_there():
    of_node = {"SLURMD_NODENAME": "n1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "3", "SLURM_CPU_BIND_LIST": "0x1"}
    of_job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "4"}
    assert that_travel(of_node | of_job) == of_job
    chosen = {"ROCR_VISIBLE_DEVICES": "1"}  # set by the user, unless Slurm gives the job GPUs
    assert that_travel(chosen) == chosen
    assert that_travel(chosen | {"SLURM_JOB_GPUS": "1"}) == {}
