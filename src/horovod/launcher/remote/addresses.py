# SPDX-License-Identifier: Apache-2.0
"""Choice of the address by which each host is known, from the results of connection attempts. Pure functions only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horovod.launcher.remote.probing import Address, Attempt


@dataclass(frozen=True)
class Choice:
    address: Address
    reason: str


def allowed(addresses: Sequence[Address], interfaces: Sequence[str]) -> list[Address]:
    """Return the addresses on the interfaces that the user named, in that order, or all if none was named."""
    if not interfaces:
        return list(addresses)
    return [address for name in interfaces for address in addresses if address.interface == name]


def choose(
    candidates: Mapping[str, Sequence[Address]], attempts: Mapping[str, Sequence[Attempt]]
) -> tuple[dict[str, Choice], list[str]]:
    """Return for each host the first address that all others reached, and the problems.

    A host that no other host has to reach gets its first address.

    Args:
        attempts: The attempts of each host that tried.
    """
    chosen: dict[str, Choice] = {}
    problems: list[str] = []
    for host, addresses in candidates.items():
        askers = {asker: tried for asker, tried in attempts.items() if any(one.host == host for one in tried)}
        reached = {
            asker: {one.address for one in tried if one.host == host and not one.problem}
            for asker, tried in askers.items()
        }
        common = [one for one in addresses if all(one.text in found for found in reached.values())]
        if common:
            chosen[host] = Choice(common[0], _reason(common[0], addresses, common, len(askers)))
        else:
            problems.append(_problem(host, addresses, askers))
    return chosen, problems


def _reason(chosen: Address, addresses: Sequence[Address], common: Sequence[Address], askers: int) -> str:
    who = "the other host reaches it" if askers == 1 else f"all {askers} others reach it"
    real = [address for address in addresses if not address.is_loopback]
    if len(real) == 1:
        return f"its only address; {who}" if askers else "its only address"
    skipped = [address.text for address in real if address not in common]
    why = who if askers else "the first of its addresses"
    return why + (f", and not {', '.join(skipped)}" if skipped else "")


def _problem(host: str, addresses: Sequence[Address], askers: Mapping[str, Sequence[Attempt]]) -> str:
    if not addresses:
        return f"{host} has no network address that could be used (--network-interfaces, HOROVOD_GLOO_IFACE)"
    lines = []
    for asker, tried in askers.items():
        failed = [f"{one.address} ({one.problem})" for one in tried if one.host == host and one.problem]
        if failed:
            lines.append(f"from {asker}: {', '.join(failed)}")
    return f"no address of {host} can be reached by all other hosts:\n    " + "\n    ".join(lines)
