# SPDX-License-Identifier: Apache-2.0
"""Long lines of a worker's output. Other tests of output are in test_launch_supervision.py."""

from horovod.launcher.output import forwarding as output
from horovod.launcher.output.forwarding import LineSplitter


def fed(data, chunk_bytes):
    splitter = LineSplitter()
    chunks = (data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes))
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.flush()


def test_a_line_of_megabytes_stays_whole():
    long = bytes(range(97, 123)) * (5 * (1 << 20) // 26)
    assert len(long) > 1 << 20
    assert fed(long + b"\n" + long, 1 << 16) == [long, long]


def test_a_line_that_does_not_end_is_shown_in_pieces_and_loses_nothing(monkeypatch):
    monkeypatch.setattr(output, "LONGEST_LINE", 1000)
    data = bytes(index % 251 + 1 for index in range(5000)).translate(None, b"\r\n")
    pieces = fed(data, 300)
    assert b"".join(pieces) == data
    assert all(1000 < len(piece) <= 1300 for piece in pieces[:-1])


def test_a_bar_is_no_longer_than_a_terminal_needs():
    splitter = LineSplitter()
    assert splitter.feed(b"x" * 100_000) == []
    assert splitter.bar is None
    assert splitter.feed(b"\r" + b"y" * 100_000) == []
    assert splitter.bar == b"y" * (1 << 14)
    assert splitter.feed(b"\n") == [b"y" * 100_000]
