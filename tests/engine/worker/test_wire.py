"""Frames over a socket: in pieces of any size, with any number of buffers, never a byte lost."""

import os
import random
import socket

import numpy as np
import pytest
from gristmill_testing.objects import TwoArguments
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.engine.worker import wire


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def to_bytes(segments):
    return b"".join(bytes(memoryview(segment).cast("B")) for segment in segments)


def transfer(pair, segments):
    """Send and receive in turn, as two event loops would."""
    ours, theirs = pair
    sender, receiver = wire.Sender(ours.fileno()), wire.Receiver(theirs.fileno())
    sender.push(segments)
    for _ in range(1_000_000):
        is_sent = sender.flush()
        frame = receiver.receive()
        if frame is not None:
            assert is_sent
            return frame
    pytest.fail("the frame never arrived")


def test_header_carries_what_the_scheduler_needs(pair):
    frame = transfer(pair, wire.pack(wire.RESULTS, {"a": 1}, last=False, chunk=2**40, num_items=2**41))
    assert (frame.kind, frame.last, frame.chunk, frame.num_items) == (wire.RESULTS, False, 2**40, 2**41)
    assert frame.load() == {"a": 1}


def test_empty_payload(pair):
    frame = transfer(pair, wire.pack(wire.STOP))
    assert frame.kind == wire.STOP
    assert frame.load() is None


def test_byte_by_byte(pair):
    """Every possible cut, in the header, the table of sizes, the body and the buffers."""
    ours, theirs = pair
    payload = [np.arange(5000), "text", np.arange(4000)]
    data = to_bytes(wire.pack(wire.CHUNK, payload, chunk=7, num_items=3))
    receiver = wire.Receiver(theirs.fileno())
    for position in range(len(data) - 1):
        ours.send(data[position : position + 1])
        assert receiver.receive() is None
    ours.send(data[-1:])
    frame = receiver.receive()
    first, text, second = frame.load()
    assert np.array_equal(first, payload[0])
    assert text == "text"
    assert np.array_equal(second, payload[2])
    assert receiver.receive() is None


@given(sizes=st.lists(st.integers(0, 40_000), max_size=20), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_any_cut_into_pieces(sizes, seed):
    rng = random.Random(seed)
    payload = [np.full(size, index % 256, dtype=np.uint8) for index, size in enumerate(sizes)]
    data = to_bytes(wire.pack(wire.RESULTS, payload) + wire.pack(wire.RESULTS, "second"))
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    receiver = wire.Receiver(theirs.fileno())
    frames = []
    while data:
        cut = rng.randint(1, 30_000)
        ours.send(data[:cut])
        data = data[cut:]
        while (frame := receiver.receive()) is not None:
            frames.append(frame.load())
    ours.close()
    theirs.close()
    first, second = frames
    assert second == "second"
    assert [array.tolist() for array in first] == [array.tolist() for array in payload]


def test_more_buffers_than_the_kernel_takes_at_once(pair):
    payload = [np.full(20_000, index % 256, dtype=np.uint8) for index in range(2500)]
    segments = wire.pack(wire.RESULTS, payload)
    assert len(segments) > 2500  # each beside the pickle, not in it
    result = transfer(pair, segments).load()
    assert all(np.array_equal(a, b) for a, b in zip(payload, result, strict=True))


@pytest.mark.parametrize("size", [0, 1, 16 * 1024 - 1, 16 * 1024, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
@pytest.mark.parametrize("kind", ["numpy", "bytes", "bytearray", "str"])
def test_sizes_around_every_threshold(pair, kind, size):
    data = {
        "numpy": lambda: np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8),
        "bytes": lambda: os.urandom(size),
        "bytearray": lambda: bytearray(os.urandom(size)),
        "str": lambda: "é" * size,
    }[kind]()
    result = transfer(pair, wire.pack(wire.RESULTS, [data, data])).load()
    for part in result:
        assert type(part) is type(data)
        assert np.array_equal(part, data) if kind == "numpy" else part == data


def test_arrays_of_no_size_and_many_shapes(pair):
    payload = [np.empty((0, 5)), np.empty((3, 0, 2), dtype=np.int8), np.zeros(()), np.zeros((200, 300))[:, ::3]]
    payload.append(np.asfortranarray(np.arange(60_000).reshape(200, 300)))
    result = transfer(pair, wire.pack(wire.RESULTS, payload)).load()
    for before, after in zip(payload, result, strict=True):
        assert before.shape == after.shape
        assert before.dtype == after.dtype
        assert np.array_equal(before, after)


def test_several_frames_wait_in_the_socket(pair):
    ours, theirs = pair
    sender, receiver = wire.Sender(ours.fileno()), wire.Receiver(theirs.fileno())
    for number in range(20):
        sender.push(wire.pack(wire.CHUNK, number, chunk=number))
    assert sender.flush()
    assert [receiver.receive().load() for _ in range(20)] == list(range(20))
    assert receiver.receive() is None


def test_sender_says_when_it_would_block(pair):
    ours, theirs = pair
    sender, receiver = wire.Sender(ours.fileno()), wire.Receiver(theirs.fileno())
    sender.push(wire.pack(wire.CHUNK, bytes(32 << 20)))
    assert not sender.flush()
    assert not sender.flush()
    assert receiver.receive() is None
    sender.push(wire.pack(wire.STOP))  # waits its turn
    frames = []
    while len(frames) < 2:
        sender.flush()
        frame = receiver.receive()
        if frame is not None:
            frames.append(frame)
    assert [frame.kind for frame in frames] == [wire.CHUNK, wire.STOP]
    assert frames[0].load() == bytes(32 << 20)


@pytest.mark.parametrize("num_bytes", [0, 5, 100])
def test_end_of_the_other_side(pair, num_bytes):
    """Before, within and after the header: the end is the end."""
    ours, theirs = pair
    data = to_bytes(wire.pack(wire.CHUNK, bytes(1000)))
    ours.send(data[:num_bytes])
    ours.close()
    receiver = wire.Receiver(theirs.fileno())
    with pytest.raises(EOFError):
        receiver.receive()


def test_complete_frames_before_the_end_are_delivered(pair):
    """What a worker sent before it died counts."""
    ours, theirs = pair
    ours.send(to_bytes(wire.pack(wire.RESULTS, "first") + wire.pack(wire.RESULTS, "second")) + b"\x0d")
    ours.close()
    receiver = wire.Receiver(theirs.fileno())
    assert receiver.receive().load() == "first"
    assert receiver.receive().load() == "second"
    with pytest.raises(EOFError):
        receiver.receive()


def test_sending_to_the_dead(pair):
    ours, theirs = pair
    theirs.close()
    sender = wire.Sender(ours.fileno())
    sender.push(wire.pack(wire.STOP))
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        sender.flush()


def test_blocking_ends_work_too():
    """A worker's end blocks: one call brings one whole frame."""
    ours, theirs = socket.socketpair()
    sender = wire.Sender(ours.fileno())
    sender.push(wire.pack(wire.CHUNK, "blocking"))
    assert sender.flush()
    assert wire.Receiver(theirs.fileno()).receive().load() == "blocking"
    ours.close()
    theirs.close()


def test_frame_with_a_broken_body_still_has_its_header(pair):
    """Unpickling may raise anything; which chunk it was is known all the same."""
    frame = transfer(pair, wire.pack(wire.RESULTS, TwoArguments("a", 1), chunk=9, num_items=4))
    assert (frame.chunk, frame.num_items) == (9, 4)
    with pytest.raises(TypeError):
        frame.load()


def test_size_of_a_frame(pair):
    frame = transfer(pair, wire.pack(wire.RESULTS, [np.zeros(1 << 20, dtype=np.uint8), bytes(1 << 16)]))
    assert (1 << 20) + (1 << 16) <= frame.nbytes < (1 << 20) + (1 << 16) + 1000
