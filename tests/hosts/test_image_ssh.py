# SPDX-License-Identifier: Apache-2.0
"""The settings of ssh and sshd in packaging/docker: without root, with a key as an operator mounts it.

The image's user, home and programs exist only in a mount namespace, its port in a network namespace.
"""

import shutil
import subprocess

import pytest
from testkit.needs import need
from testkit.places import ROOT
from testkit.processes import run
from testkit.ssh import missing

# Arguments: $1 is packaging/docker, $2 a folder with id_rsa, id_rsa.pub and the public key of another user.
INSIDE = r"""
set -eu
ip link set lo up
mount -t tmpfs tmpfs /home
mkdir -p /home/mpiuser/.ssh
cp "$1/ssh_config" "$1/sshd_config" /home/mpiuser
cp "$2/id_rsa" "$2/id_rsa.pub" /home/mpiuser/.ssh
cp "$2/id_rsa.pub" /home/mpiuser/.ssh/authorized_keys
chmod 644 /home/mpiuser/.ssh/*
awk -F: '$3 != 1000' /etc/passwd > /home/passwd
echo mpiuser:x:1000:1000::/home/mpiuser:/bin/sh >> /home/passwd
mount --bind /home/passwd /etc/passwd
mount -t tmpfs tmpfs /usr/local/bin
install "$1"/khorovod-* /usr/local/bin
cd /home/mpiuser
user="setpriv --no-new-privs --reuid 1000 --regid 1000 --clear-groups env -i PATH=/usr/bin:/bin HOME=/home/mpiuser"
$user /usr/sbin/sshd -D -e -f sshd_config &
until (exec 3<> /dev/tcp/127.0.0.1/2222) 2> /dev/null; do kill -0 $!; sleep 0.02; done
$user ssh -F ssh_config -o BatchMode=yes localhost 'echo reached as $(id -un)'
cp "$2/other.pub" .ssh/id_rsa.pub
chmod 644 .ssh/id_rsa.pub
if $user ssh -F ssh_config -o BatchMode=yes localhost echo reached; then exit 9; fi
echo refused
kill $!
"""


@pytest.fixture
def keys(tmp_path):
    """Return a folder with keys like those of Kubeflow's operators: elliptic curves, under the name of an RSA key."""
    for name in ("id_rsa", "other"):
        make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(make, check=True, timeout=60)
    return tmp_path


def test_the_jobs_key_opens_the_door_and_proves_the_host(keys):
    need(missing(), "root, and scripts/system-packages")
    inside = [
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        shutil.which("bash"),
        "-c",
        INSIDE,
        "sh",
    ]
    done = run([*inside, str(ROOT / "packaging" / "docker"), str(keys)], limit_s=90)
    assert done.stdout == "reached as mpiuser\nrefused\n", done.stderr
    assert "Host key verification failed" in done.stderr
