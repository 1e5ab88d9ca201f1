# SPDX-License-Identifier: Apache-2.0
"""Choice of a host's address from the results of connection attempts."""

from horovod.launcher.remote.addresses import allowed, choose
from horovod.launcher.remote.probing import Address, Attempt

ETH = Address("eth0", "10.0.0.2")
IB = Address("ib0", "192.168.0.2")
DOCKER = Address("docker0", "172.17.0.1")


def attempts(**by_asker):
    return {asker: [Attempt("b", *one) for one in tried] for asker, tried in by_asker.items()}


def test_the_first_address_that_everybody_reached():
    found, problems = choose(
        {"b": [DOCKER, ETH, IB]},
        attempts(
            a=[(DOCKER.text, 0.1, "another machine answers there"), (ETH.text, 0.1, ""), (IB.text, 0.1, "")],
            c=[(DOCKER.text, 2.0, "timed out"), (ETH.text, 0.1, "timed out"), (IB.text, 0.1, "")],
        ),
    )
    assert problems == []
    assert found["b"].address == IB
    assert found["b"].reason == "all 2 others reach it, and not 172.17.0.1, 10.0.0.2"


def test_a_host_that_cannot_be_reached_says_from_where_and_why():
    tries = attempts(a=[(ETH.text, 2.0, "timed out")], c=[(ETH.text, 0.1, "")])
    found, problems = choose({"b": [ETH]}, tries)
    assert found == {}
    assert problems == ["no address of b can be reached by all other hosts:\n    from a: 10.0.0.2 (timed out)"]


def test_a_host_without_an_address():
    _, problems = choose({"b": []}, {"a": []})
    assert problems == ["b has no network address that could be used (--network-interfaces, HOROVOD_GLOO_IFACE)"]


def test_interfaces_that_the_user_named_decide_in_that_order():
    assert allowed([DOCKER, ETH, IB], []) == [DOCKER, ETH, IB]
    assert allowed([DOCKER, ETH, IB], ["ib0", "eth0"]) == [IB, ETH]
    assert allowed([ETH], ["ib0"]) == []


def test_a_host_that_nobody_needs_to_reach_and_the_only_address():
    loopback = Address("lo", "127.0.0.1")
    found, _ = choose({"b": [ETH, loopback]}, {})
    assert (found["b"].address, found["b"].reason) == (ETH, "its only address")
    found, _ = choose({"b": [ETH, loopback]}, attempts(a=[(ETH.text, 0.1, ""), (loopback.text, 0.1, "refused")]))
    assert found["b"].reason == "its only address; the other host reaches it"
