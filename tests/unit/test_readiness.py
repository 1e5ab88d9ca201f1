# SPDX-License-Identifier: Apache-2.0
"""Waiting for a file descriptor, also above the limit of select(), and launcher threads that fail."""

import os
import resource
import socket
import threading

import pytest

from horovod.common.readiness import is_readable, is_writable, readable_and_writable
from horovod.launcher.start.processes import CannotRunError
from horovod.launcher.start.thread_failures import ThreadFailures

ABOVE_SELECTS_LIMIT = 1500


@pytest.fixture
def ends():
    """Yield both ends of a socket pair; the descriptor of the first is above the limit of select()."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2 * ABOVE_SELECTS_LIMIT), limits[1]))
    one, other = socket.socketpair()
    os.dup2(one.fileno(), ABOVE_SELECTS_LIMIT)
    one.close()
    yield ABOVE_SELECTS_LIMIT, other
    os.close(ABOVE_SELECTS_LIMIT)
    other.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_high_descriptors(ends):
    high, other = ends
    assert not is_readable(high, 0)
    assert readable_and_writable(high, 1) == (False, True)
    other.send(b"x")
    assert is_readable(high)
    assert is_writable(other, -1)
    assert readable_and_writable(high, 0) == (True, True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_thread_of_ours_is_named_and_others_are_not():
    def fail():
        raise KeyError("lost")

    woken = threading.Event()
    with ThreadFailures(woken.set) as failures:
        for name in ("a-library", "horovod-discovery"):
            failures.check()
            thread = threading.Thread(target=fail, name=name)
            thread.start()
            thread.join()
        assert woken.is_set()
        with pytest.raises(CannotRunError, match=r"thread horovod-discovery failed with KeyError: 'lost'"):
            failures.check()
