# SPDX-License-Identifier: Apache-2.0
"""hvd.counters() compared with the kernel's counters of the hosts' network interfaces."""

import json
import sys
from pathlib import Path

import pytest
from testkit.launcher import lines_by_rank

PROGRAM = [sys.executable, str(Path(__file__).with_name("programs") / "byte_counters.py")]
MOVED = 50_000_000


@pytest.mark.parametrize("slots", [1, 2])
def test_they_agree_with_the_interfaces_to_five_percent(horovodrun, slots):
    """Check the counters. The difference is headers, acknowledgements and messages of the launcher."""
    done = horovodrun("-H", f"h2:{slots},h3:{slots}", *PROGRAM)
    assert done.returncode == 0, done.stderr
    found = {rank: json.loads(lines[-1]) for rank, lines in lines_by_rank(done.stdout).items()}
    assert sorted(found) == list(range(2 * slots))
    for host in ([0, 1], [2, 3]) if slots == 2 else ([0], [1]):
        ours = [found[rank] for rank in host]
        # All ranks of a host read the same interface, while each counts only its own bytes.
        for interface in ours:
            for way in ("sent", "received"):
                counted = sum(rank[way] for rank in ours)
                assert counted == pytest.approx(interface[f"interface_{way}"], rel=0.05), (way, found)
        assert sum(rank["data_sent"] for rank in ours) == MOVED
