# SPDX-License-Identifier: Apache-2.0
"""`hvd doctor -H` without other hosts: findings and advice, their display, and network measurements."""

import io
import itertools
import json
import socket
import struct
import sys
import time
from contextlib import closing

import pytest
from rich.console import Console
from typer.testing import CliRunner

import horovod
from horovod.common.rendezvous.protocol import (
    HELLO_BYTES,
    PROOF_BYTES,
    VERDICT_BYTES,
    WRONG_SECRET,
    ClientHandshake,
    make_secret,
)
from horovod.launcher.remote import measuring
from horovod.launcher.remote.addresses import Choice
from horovod.launcher.remote.measuring import MeasuringListener, Way, measure
from horovod.launcher.remote.opening import Silence
from horovod.launcher.remote.probing import Address
from horovod.launcher.remote.surveying import Offset, Survey, Surveyed, offset_between, rounds
from horovod.machine import gpus
from horovod.tools import hosts_page
from horovod.tools.cli import app
from horovod.tools.several_hosts import HostsExamination


@pytest.mark.parametrize("count", range(8))
def test_every_way_is_measured_once_and_no_host_has_two_partners_at_a_time(count):
    names = [f"h{number}" for number in range(count)]
    found = list(rounds(names))
    assert sorted(itertools.chain(*found)) == sorted(itertools.permutations(names, 2))
    for pairs in found:
        busy = [name for pair in pairs for name in pair]
        assert len(set(busy)) == len(busy)


def test_a_clock_read_between_two_readings_is_known_to_half_their_distance():
    offset = offset_between(100.0, 105.25, 100.5)
    assert (offset.seconds, offset.error) == (5.0, 0.25)


SECRET = make_secret()


@pytest.fixture
def listener():
    with closing(MeasuringListener(SECRET)) as listener:
        yield listener


def test_a_way_is_measured(listener):
    begin = time.monotonic()
    way = measure("127.0.0.1", listener.port, SECRET)
    assert way.problem == ""
    assert 0 < way.round_trip_s < 1
    assert way.bandwidth > 1e6
    assert time.monotonic() - begin < 10  # takes a third of a second on an idle machine


def test_who_measures_does_not_trust_a_listener_without_the_secret(listener):
    assert measure("127.0.0.1", listener.port, make_secret()) == Way(problem="another program answers there")


def test_a_listener_does_nothing_for_a_stranger(listener):
    with socket.create_connection(("127.0.0.1", listener.port), 5) as stranger:
        hello = stranger.recv(HELLO_BYTES, socket.MSG_WAITALL)
        stranger.sendall(hello[:-32] + bytes(PROOF_BYTES - len(hello) + 32))
        assert stranger.recv(VERDICT_BYTES, socket.MSG_WAITALL)[0] == WRONG_SECRET
        assert stranger.recv(1) == b""


def test_a_listener_to_which_nothing_gets_through_says_so(listener):
    with socket.create_connection(("127.0.0.1", listener.port), 5) as connection:
        handshake = ClientHandshake(SECRET)
        connection.sendall(handshake.prove(connection.recv(HELLO_BYTES, socket.MSG_WAITALL)))
        handshake.check(connection.recv(VERDICT_BYTES, socket.MSG_WAITALL))
        connection.sendall(b"pf")
        assert connection.recv(1) == b"p"
        count, _ = struct.unpack("!Qd", connection.recv(16, socket.MSG_WAITALL))
        assert count == 0


def test_a_closed_listener_and_packets_that_get_lost_are_problems(listener, monkeypatch):
    monkeypatch.setattr(measuring, "_count", lambda connection: (0, 0.3))
    way = measure("127.0.0.1", listener.port, SECRET)
    assert (way.bandwidth, way.problem) == (None, "small packets arrive, large ones do not")
    assert way.round_trip_s > 0
    listener.close()
    assert measure("127.0.0.1", listener.port, SECRET) == Way(problem="Connection refused")


HERE = {
    "version": horovod.__version__,
    "python": ".".join(map(str, sys.version_info[:3])),
    "hostname": "x",
    "cores": 8,
    "addresses": [["eth0", "10.0.0.1"]],
}
CHOICE = Choice(Address("eth0", "10.0.0.1"), "its only address")


def fine(**changes):
    facts = {**HERE, **changes.pop("facts", {})}
    return Surveyed(**{"facts": facts, "choice": CHOICE, "offset": Offset(0.0001, 0.001), **changes})


def advice_for(hosts, ways=None, slots=2):
    return HostsExamination(dict.fromkeys(hosts, slots), Survey(hosts, ways or {}, [])).advice


SILENT = Surveyed(Silence("exit code 255", ["banner", "ssh: No route to host"], ["to see it: ssh x"]))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (fine(), []),
        (fine(facts={"cores": 1}), ["a: 2 slots on 1 cores"]),
        (fine(examination={"gpus": ["H200"]}), ["a: 2 slots for 1 GPUs: -H a:1"]),
        (fine(facts={"python": "3.2.1"}), ["a: Python 3.2 there"]),
        (fine(facts={"version": "0.9"}), [f"a: install khorovod {horovod.__version__} there, or 0.9 here"]),
        (fine(offset=Offset(-3.0, 0.001)), ["a: its clock is 3 s behind this machine's: run chrony"]),
        (fine(offset=Offset(0.3, 0.25)), []),  # the uncertainty is almost as large as the offset
        (SILENT, ["a: ssh: No route to host; to see it: ssh x"]),
        (fine(examination={"findings": [["open files", "64", "ulimit -n 4096"]]}), ["a: open files: ulimit -n 4096"]),
    ],
)
def test_what_to_change_about_a_host(host, expected):
    found = advice_for({"a": host})
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True))


def test_what_concerns_several_hosts_is_said_once():
    host = fine(examination={"findings": [["/dev/shm", "64 MiB", "a larger tmpfs"], ["cores", "8", ""]]})
    assert advice_for({"a": host, "b": host}) == ["a, b: /dev/shm: a larger tmpfs"]


def test_ways_that_stand_out_are_named():
    usual = Way(50e-6, 1e9)
    names = ("a", "b", "c")
    ways = dict.fromkeys(itertools.permutations(names, 2), usual)
    hosts = dict.fromkeys(names, fine())
    assert advice_for(hosts, ways) == []
    ways["a", "b"] = Way(50e-6, 1e8)
    ways["b", "c"] = Way(0.002, 1e9)
    ways["c", "a"] = Way(50e-6, None, "small packets arrive, large ones do not")
    slow, far, lossy = sorted(advice_for(hosts, ways))
    assert slow.startswith("a to b: 0.10 GB/s, where 1.00 GB/s is usual")
    assert far.startswith("b to c: a round trip takes 2.00 ms, where 50.0 µs is usual")
    assert lossy.startswith("c to a: small packets arrive, large ones do not: the same MTU")


def test_ways_to_a_host_that_was_lost_meanwhile_are_not_blamed():
    ways = {("a", "b"): Way(problem="No route to host"), ("b", "a"): Way(problem="its agent did not answer")}
    assert len(advice_for({"a": fine(), "b": SILENT}, ways)) == 1
    assert len(advice_for({"a": fine(), "b": fine()}, ways)) == 2


def page_of(found):
    text = io.StringIO()
    console = Console(file=text, width=100)
    for part in hosts_page.as_page(found):
        console.print(part, crop=False)
    return text.getvalue()


@pytest.mark.parametrize("count", [2, 4, 6])
def test_the_page_shows_every_host_and_way_and_says_what_the_document_says(count):
    names = [f"node-{number}" for number in range(count)]
    hosts = {name: fine(examination={"gpus": ["NVIDIA H200"] * 2, "findings": []}) for name in names}
    hosts["gone"] = SILENT
    hosts["old"] = fine(facts={"version": "0.9"}, choice=None)
    ways = dict.fromkeys(itertools.permutations(names, 2), Way(50e-6, 1e9))
    ways["node-0", "node-1"] = Way(50e-6, 5e8)
    found = HostsExamination(dict.fromkeys(hosts, 1), Survey(hosts, ways, []))
    page = page_of(found)
    assert max(map(len, page.splitlines())) <= 100
    shown = ("2 x NVIDIA H200", "10.0.0.1 (eth0)", "ssh: No route to host", "another version", "0.50 GB/s")
    for words in (*names, *shown):
        assert words in page
    document = json.loads(json.dumps(hosts_page.as_json(found)))
    assert [host["answers"] for host in document["hosts"]] == [True] * count + [False, True]
    assert document["hosts"][-2]["problem"] == "exit code 255\nbanner\nssh: No route to host"
    assert len(document["ways"]) == count * (count - 1)
    assert document["advice"] == found.advice
    assert all(line in " ".join(page.split()) for line in document["advice"])


def test_a_command_to_type_is_not_broken():
    command = "to see it: ssh " + "x" * 150
    host = Surveyed(Silence("exit code 255", [], [command]))
    assert command in page_of(HostsExamination({"a": 1}, Survey({"a": host}, {}, [])))


def test_gpus_are_counted_by_name():
    listed = "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n  MIG 1g.18gb Device 0: (UUID: x)\n"
    assert gpus.summary(gpus.listed(listed)) == "2 x NVIDIA H200"
    assert gpus.model("Model: \t\t NVIDIA A100-SXM4-40GB \nIRQ: 1\n") == "NVIDIA A100-SXM4-40GB"
    assert gpus.summary([]) == "none"


@pytest.mark.parametrize("words", [("-H", "a"), ("--hostfile", "/nowhere"), ("-H", "a:1", "--hostfile", "/nowhere")])
def test_hosts_that_make_no_sense_are_refused(words):
    for command in ("doctor", "test"):
        done = CliRunner().invoke(app, [command, *words])
        assert done.exit_code == 1
        assert f"hvd {command}: " in done.output
