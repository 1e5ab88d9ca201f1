# SPDX-License-Identifier: Apache-2.0
"""Run a script on two simulated sites behind a slow link: two network namespaces of this computer, a worker in each.

    sudo python two_sites.py --mbit-per-s 10 python diloco.py

Needs Linux, root, `ip` and `tc`. On real sites horovodrun starts the workers; here each one is started by hand.
"""

from __future__ import annotations

import argparse
import base64
import os
import secrets
import subprocess
import sys

ADDRESSES = {"east": "10.99.0.1", "west": "10.99.0.2"}
PORT = 29500


def sh(*words: str) -> None:
    subprocess.run(words, check=True)


def open_sites(mark: str, mbit_per_s: float) -> dict[str, str]:
    """Create a namespace for each site and a link between them; return the namespaces' names."""
    names = {site: f"{mark}-{site}" for site in ADDRESSES}
    for name in names.values():
        sh("ip", "netns", "add", name)
    east, west = names.values()
    sh("ip", "-n", east, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", west)
    for site, name in names.items():
        sh("ip", "-n", name, "address", "add", f"{ADDRESSES[site]}/24", "dev", "eth0")
        sh("ip", "-n", name, "link", "set", "lo", "up")
        sh("ip", "-n", name, "link", "set", "eth0", "up")
        rate = ["rate", f"{mbit_per_s}mbit", "burst", "64kb", "latency", "50ms"]
        sh("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *rate)
    return names


def close_sites(names: dict[str, str]) -> None:
    for name in names.values():
        subprocess.run(["ip", "netns", "delete", name], check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit-per-s", type=float, default=10)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="command of both workers")
    options = parser.parse_args()
    if not options.command:
        parser.error("which command? For example: two_sites.py --mbit-per-s 10 python diloco.py")
    shared = {
        "HOROVOD_SIZE": "2",
        "HOROVOD_RENDEZVOUS": "self",  # rank 0 serves the rendezvous
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": ADDRESSES["east"],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(PORT),
        "_HOROVOD_SECRET_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
        "OMP_NUM_THREADS": "1",
    }
    names = {site: f"hvd-{os.getpid()}-{site}" for site in ADDRESSES}
    workers = []
    try:
        names = open_sites(f"hvd-{os.getpid()}", options.mbit_per_s)
        for rank, (site, name) in enumerate(names.items()):
            own = {"HOROVOD_RANK": str(rank), "HOROVOD_HOSTNAME": site, "HOROVOD_LOCAL_RANK": "0"}
            environment = os.environ | shared | own | {"HOROVOD_LOCAL_SIZE": "1"}
            workers.append(subprocess.Popen(["ip", "netns", "exec", name, *options.command], env=environment))
        return max(worker.wait() for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
        close_sites(names)


if __name__ == "__main__":
    sys.exit(main())
