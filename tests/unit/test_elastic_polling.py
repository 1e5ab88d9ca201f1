# SPDX-License-Identifier: Apache-2.0
"""What a discovery script may print, and how the limits of an elastic job are read."""

import pytest

from horovod.runner.elastic.polling import DiscoveryError, find_hosts, parse_hosts
from horovod.runner.elastic.running import limits_of


def test_hosts_with_and_without_slots():
    assert parse_hosts("a:2\n\n  b \n", 4) == {"a": 2, "b": 4}
    assert parse_hosts("", None) == {}


@pytest.mark.parametrize(("text", "words"), [("a", "without a number of slots"), ("a:x", "a:x"), ("; rm -rf:2", "rm")])
def test_anything_else_is_refused(text, words):
    with pytest.raises(DiscoveryError, match=words):
        parse_hosts(text, None)


def test_a_script_that_fails_is_quoted():
    assert find_hosts("echo localhost:2", None) == {"localhost": 2}
    with pytest.raises(DiscoveryError, match="ended with exit code 3: no cluster today"):
        find_hosts("echo no cluster today >&2; exit 3", None)


def test_limits():
    given = {"num_proc": 4, "min_num_proc": 2, "reset_limit": 3, "cooldown_range": [1, 9], "elastic_timeout": 7}
    limits = limits_of(given, {"localhost": 6})
    assert (limits.min_num_proc, limits.max_num_proc, limits.fixed_hosts) == (2, 6, True)
    assert (limits.reset_limit, limits.cooldown, limits.timeout_s) == (3, (1.0, 9.0), 7.0)
    assert limits_of({"num_proc": 2, "host_discovery_script": "x"}, {}).min_num_proc == 2
    with pytest.raises(ValueError, match="--min-np 5, -np 4 and --max-np 6 must be in ascending order"):
        limits_of({"num_proc": 4, "min_num_proc": 5}, {"localhost": 6})
