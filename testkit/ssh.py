# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts that ssh can reach: network namespaces, each with a name, an sshd and a key. Needs root and sshd."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from testkit.hosts import Network

_SSHD = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
_START_LIMIT_S = 60.0
_PORT = 22

_SERVER = """\
Port {port}
HostKey {key}
PidFile none
AuthorizedKeysFile {keys}
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
LogLevel ERROR
MaxStartups 100
"""
_CLIENT = """\
Host *
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


def missing() -> list[str]:
    """Return the requirements of such hosts that this machine lacks."""
    programs = [name for name in ("ip", "ssh", "ssh-keygen", "unshare") if shutil.which(name) is None]
    return [*programs, *([] if _SSHD else ["sshd"]), *([] if os.geteuid() == 0 else ["root"])]


class SshHosts:
    """Hosts that resolve each other by name; ssh between them needs no password or confirmation."""

    def __init__(self, names: list[str], folder: Path, *, ipv6: bool = False) -> None:
        self.folder = folder
        self.network = Network(names, ipv6=ipv6)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._files: list[Path] = []
        try:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
            _make_key(folder / "key")
            (folder / "client").write_text(_CLIENT.format(folder=folder))
            (folder / "known_hosts").write_text("")
            for name in names:
                self._write_names(name)
                self._prepare(name)
                self._start_sshd(name)
            for name in names:
                self._await_sshd(name)
        except BaseException:
            self.close()
            raise

    @property
    def ssh(self) -> str:
        """Return the value of HOROVOD_SSH_COMMAND that connects to these hosts."""
        return f"ssh -F {self.folder}/client"

    def inside(self, name: str) -> list[str]:
        """Return the prefix that makes a command run on that host, with that host's name."""
        naming = 'hostname "$0" && exec "$@"'
        return [*self.network.inside(name), "unshare", "--uts", "sh", "-c", naming, name]

    def change_key(self, name: str) -> None:
        """Restart the host's sshd with another key, as if another machine answered under its name."""
        self._start_again(name, "other_key")

    def restore_key(self, name: str) -> None:
        self._start_again(name, "host_key")

    def stop(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def close(self) -> None:
        for name in list(self._daemons):
            self.stop(name)
        self.network.close()
        for path in self._files:
            shutil.rmtree(path, ignore_errors=True)

    def _write_names(self, name: str) -> None:
        """Write the host's /etc/hosts, which `ip netns exec` mounts from this folder."""
        folder = Path("/etc/netns") / self.network.namespace(name)
        folder.mkdir(parents=True)
        self._files.append(folder)
        lines = [f"{address} {host}" for host, address in self.network.addresses.items()]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def _prepare(self, name: str) -> None:
        folder = self.folder / name
        folder.mkdir()
        for key in ("host_key", "other_key"):
            _make_key(folder / key)
        with (self.folder / "known_hosts").open("a") as file:
            file.write(f"{name} {(folder / 'host_key.pub').read_text()}")

    def _start_sshd(self, name: str, key: str = "host_key") -> None:
        folder = self.folder / name
        (folder / "sshd_config").write_text(_SERVER.format(port=_PORT, key=folder / key, keys=self.folder / "key.pub"))
        assert _SSHD is not None
        command = [*self.inside(name), _SSHD, "-D", "-e", "-f", str(folder / "sshd_config")]
        with (folder / "log").open("wb") as log:
            self._daemons[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _start_again(self, name: str, key: str) -> None:
        self.stop(name)
        self._start_sshd(name, key)
        self._await_sshd(name)

    def _await_sshd(self, name: str) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        address = self.network.addresses[name]
        probe = [*self.network.inside(name), "python3", "-c", _KNOCK, address, str(_PORT)]
        while subprocess.run(probe, capture_output=True, timeout=_START_LIMIT_S, check=False).returncode != 0:
            if self._daemons[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"sshd on {name} did not start: {(self.folder / name / 'log').read_text()}")


_KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)"


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=60)
