import io
import random
import threading

import pytest

from gristmill.storage.stores.ranged_stream import AHEAD, PIECE_BYTES, RangedStream

DATA = random.Random(1).randbytes(6 * PIECE_BYTES + 17)


class Requests:
    def __init__(self):
        self.ranges = []
        self._lock = threading.Lock()

    def __call__(self, start, stop):
        with self._lock:
            self.ranges.append((start, stop))
        return DATA[start:stop]


@pytest.mark.parametrize("stop", [None, 10, 2 * PIECE_BYTES + 5, len(DATA) + 3 * PIECE_BYTES])
@pytest.mark.parametrize("seed", range(3))
def test_reads_equal_those_of_a_file(seed, stop):
    rng = random.Random(seed)
    with RangedStream(Requests(), DATA.__len__, stop=stop) as stream:
        reference = io.BytesIO(DATA)
        for _ in range(60):
            if rng.random() < 0.2:
                position = rng.randrange(len(DATA) + 10)
                assert stream.seek(position) == reference.seek(position)
            size = rng.choice([0, 1, 1000, 100_000, PIECE_BYTES, 2 * PIECE_BYTES])
            assert stream.read(size) == reference.read(size)
            assert stream.tell() == reference.tell()


def test_everything_is_fetched_once():
    requests = Requests()
    with RangedStream(requests, DATA.__len__) as stream:
        pieces = []
        while piece := stream.read(100_000):
            pieces.append(piece)
    assert b"".join(pieces) == DATA
    assert sum(stop - start for start, stop in requests.ranges) == len(DATA)


def test_nothing_is_fetched_ahead_beyond_the_stop():
    requests = Requests()
    start, stop = PIECE_BYTES, 3 * PIECE_BYTES
    with RangedStream(requests, DATA.__len__, start, stop) as stream:
        assert stream.read(stop - start) == DATA[start:stop]
        assert max(end for _, end in requests.ranges) == stop
        assert stream.read(10) == DATA[stop : stop + 10]
    assert max(end for _, end in requests.ranges) < 4 * PIECE_BYTES


def test_the_first_ranges_up_to_a_stop_are_fetched_at_once():
    """None of them is answered before all have been asked for."""
    barrier = threading.Barrier(AHEAD, timeout=30)

    def read_range(start, stop):
        barrier.wait()
        return DATA[start:stop]

    with RangedStream(read_range, DATA.__len__, 10, 10 + AHEAD * PIECE_BYTES) as stream:
        assert stream.read(100) == DATA[10:110]


def test_a_reader_that_jumps_gets_what_it_asks_for():
    requests = Requests()
    with RangedStream(requests, DATA.__len__) as stream:
        for position in (5 * PIECE_BYTES, 100, 3 * PIECE_BYTES):
            stream.seek(position)
            stream.read(10)
    assert len(requests.ranges) == 3


def test_pieces_are_fetched_in_parallel():
    """All requests ahead are on their way before the first of them is answered."""
    barrier = threading.Barrier(AHEAD)

    def read_range(start, stop):
        if start >= PIECE_BYTES:
            barrier.wait(30)
        return DATA[start:stop]

    with RangedStream(read_range, lambda: (AHEAD + 1) * PIECE_BYTES) as stream:
        assert stream.read(PIECE_BYTES) == DATA[:PIECE_BYTES]
        assert stream.read(10) == DATA[PIECE_BYTES : PIECE_BYTES + 10]


def test_an_error_is_raised_where_it_is_read():
    def read_range(start, stop):
        if start >= 2 * PIECE_BYTES:
            raise ConnectionError("gone")
        return DATA[start:stop]

    with RangedStream(read_range, DATA.__len__) as stream:
        stream.read(2 * PIECE_BYTES)
        with pytest.raises(ConnectionError):
            stream.read(10)
