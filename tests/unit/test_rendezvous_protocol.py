# SPDX-License-Identifier: Apache-2.0
"""The rendezvous protocol without sockets: handshake, frames, and all input that it must refuse."""

import struct

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.common.rendezvous import protocol
from horovod.common.rendezvous.protocol import (
    AuthenticationError,
    ClientHandshake,
    FrameReader,
    FrameWriter,
    ProtocolError,
    ServerHandshake,
)

SECRET = bytes(range(32))
KEY = b"k" * 32


def test_both_sides_agree_on_the_session_keys():
    server, client = ServerHandshake(SECRET), ClientHandshake(SECRET)
    proof = client.prove(server.hello)
    verdict, keys = server.judge(proof)
    assert (len(server.hello), len(proof), len(verdict)) == (
        protocol.HELLO_BYTES,
        protocol.PROOF_BYTES,
        protocol.VERDICT_BYTES,
    )
    assert client.check(verdict) == keys
    assert keys is not None
    assert keys.to_client != keys.to_server


def test_a_wrong_secret_is_refused_by_both_sides():
    server, client = ServerHandshake(SECRET), ClientHandshake(b"x" * 32)
    verdict, keys = server.judge(client.prove(server.hello))
    assert keys is None
    with pytest.raises(AuthenticationError, match="secret"):
        client.check(verdict)


def test_a_server_without_the_secret_cannot_pose_as_one():
    client = ClientHandshake(SECRET)
    client.prove(ServerHandshake(SECRET).hello)
    with pytest.raises(AuthenticationError):
        client.check(bytes([protocol.ACCEPTED]) + bytes(protocol.MAC_BYTES))


def test_a_replayed_proof_is_refused():
    first, second, client = ServerHandshake(SECRET), ServerHandshake(SECRET), ClientHandshake(SECRET)
    proof = client.prove(first.hello)
    assert first.judge(proof)[1] is not None
    assert second.judge(proof)[1] is None


def test_another_protocol_version_is_named():
    server, client = ServerHandshake(SECRET), ClientHandshake(SECRET)
    hello = bytearray(server.hello)
    hello[7] += 1
    verdict, _ = server.judge(client.prove(bytes(hello)))
    with pytest.raises(AuthenticationError, match="version 2, this process uses 1"):
        client.check(verdict)


@settings(deadline=None)  # the machine may be busy
@given(st.binary(min_size=protocol.PROOF_BYTES, max_size=protocol.PROOF_BYTES))
def test_random_proofs_never_authenticate(proof):
    server = ServerHandshake(SECRET)
    try:
        assert server.judge(proof)[1] is None
    except ProtocolError:
        pass


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.dictionaries(st.text(), st.integers(-(2**40), 2**40) | st.binary())), st.integers(1, 40))
def test_frames_survive_any_cutting(messages, cut):
    writer, reader = FrameWriter(KEY), FrameReader(KEY)
    stream = b"".join(writer.frame(message) for message in messages)
    received = []
    for start in range(0, len(stream), cut):
        received += reader.feed(stream[start : start + cut])
    assert received == messages


def test_a_flipped_bit_anywhere_is_noticed():
    frame = FrameWriter(KEY).frame({"a": 1})
    for position in range(4, len(frame)):  # the next test covers the first four bytes, which hold the length
        damaged = bytearray(frame)
        damaged[position] ^= 1
        with pytest.raises(ProtocolError):
            FrameReader(KEY).feed(bytes(damaged))


def test_an_oversized_length_is_refused_from_the_header_alone():
    for length in (protocol.MAX_PAYLOAD_BYTES + 1, 2**31, 2**32 - 1):
        with pytest.raises(ProtocolError, match="limit"):
            FrameReader(KEY).feed(struct.pack("!IQ", length, 0))


def test_replayed_reordered_and_reflected_frames_are_refused():
    writer, reader = FrameWriter(KEY), FrameReader(KEY)
    first, second = writer.frame({"n": 1}), writer.frame({"n": 2})
    with pytest.raises(ProtocolError, match="replay"):
        FrameReader(KEY).feed(second)
    assert reader.feed(first) == [{"n": 1}]
    with pytest.raises(ProtocolError, match="replay"):
        reader.feed(first)
    with pytest.raises(ProtocolError, match="MAC"):
        FrameReader(b"other key").feed(first)


@pytest.mark.parametrize("payload", [b"\xc1", b"", b"\x81", msgpack.packb([1]), msgpack.packb(7)])
def test_an_authentic_frame_without_a_message_is_refused(payload, monkeypatch):
    monkeypatch.setattr(protocol.msgpack, "packb", lambda _: payload)
    with pytest.raises(ProtocolError, match="message"):
        FrameReader(KEY).feed(FrameWriter(KEY).frame({}))


def test_a_message_over_the_limit_is_not_sent():
    with pytest.raises(ProtocolError, match="exceeds"):
        FrameWriter(KEY).frame({"data": bytes(protocol.MAX_PAYLOAD_BYTES)})


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.binary(max_size=200), max_size=10))
def test_random_bytes_give_no_message_and_no_other_error(chunks):
    reader = FrameReader(KEY)
    try:
        for chunk in chunks:
            assert reader.feed(chunk) == []
    except ProtocolError:
        pass
