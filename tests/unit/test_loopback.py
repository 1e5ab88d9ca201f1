# SPDX-License-Identifier: Apache-2.0
"""The launcher's check that this machine can connect to itself."""

import errno
import socket

import pytest

from horovod.common.joining import interfaces


def test_a_process_without_descriptors_does_not_blame_the_loopback_interface(monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(OSError, match="Too many open files") as raised:
        interfaces.check_loopback()
    assert not isinstance(raised.value, interfaces.LoopbackError)


def test_a_refused_connection_names_loopback(monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(interfaces.LoopbackError, match=r"127\.0\.0\.1 \(Network is unreachable\)"):
        interfaces.check_loopback()
