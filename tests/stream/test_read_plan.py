"""Plans of reads against the fetches of real runs, with caches of many sizes."""

import fsspec
import pytest
from click.testing import CliRunner

from gristmill.cli.training.stream import stream_command
from gristmill.stream import Cache, Stream
from gristmill.stream.read_plan import plan_reads

URL = "memory://planned"


@pytest.fixture
def open_stream(packed, tmp_path, monkeypatch):
    """Opens the dataset in the memory of the process, with a cache of some bytes that is empty."""
    monkeypatch.setattr("gristmill.storage.user_cache._folder", tmp_path / "copies")
    store = fsspec.filesystem("memory")
    for path in packed.rglob("*"):
        if path.is_file():
            store.pipe_file(f"/planned/{path.relative_to(packed)}", path.read_bytes())
    caches = (tmp_path / f"cache-{number}" for number in range(100))

    def open_stream(cache_bytes=1 << 30, **options):
        cache = Cache(next(caches), max_bytes=cache_bytes)
        return Stream(URL, **{"seed": 7, "epochs": 2, "cache": cache, **options})

    yield open_stream
    store.rm("/planned", recursive=True)


@pytest.mark.parametrize("shuffle", [True, {"blocks": 4}, False], ids=["rows", "blocks", "none"])
def test_a_plan_is_exact_or_says_what_is_certain(open_stream, shuffle):
    total = int(open_stream().reader.table.blocks.bytes.sum())
    for percent in (5, 10, 20, 40, 99, 100, 140):
        stream = open_stream(shuffle=shuffle, cache_bytes=total * percent // 100)
        plan = plan_reads(stream, 3, 1, 1000)
        assert sum(1 for _ in stream.batches(3)) == plan.steps
        cache = stream.reader.table.blocks.cache
        assert bool(plan.uncertainty) == (percent < 100)
        if plan.uncertainty:
            assert plan.distinct_requests <= cache.num_fetches
            assert plan.distinct_bytes <= cache.fetched_bytes
            assert plan.requests >= plan.distinct_requests
        else:
            assert (cache.num_fetches, cache.fetched_bytes) == (plan.requests, plan.bytes_read)
            assert plan.requests == plan.distinct_requests


def test_blocks_fetched_ahead_of_the_last_step_count(open_stream):
    """The cache has room for the blocks of the steps, but not for those ahead of them."""
    plan = plan_reads(open_stream(), 1, 1, 3)
    assert not plan.uncertainty
    for cache_bytes, is_exact in ((plan.distinct_bytes, False), (plan.distinct_bytes * 4 // 3 + 4, True)):
        assert bool(plan_reads(open_stream(cache_bytes=cache_bytes), 1, 1, 3).uncertainty) != is_exact


@pytest.mark.parametrize("shuffle", [True, {"blocks": 2}, False], ids=["rows", "blocks", "none"])
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_what_is_fetched_ahead_for_later_steps_is_planned(open_stream, shuffle, steps):
    stream = open_stream(shuffle=shuffle, epochs=2, cache_bytes=1 << 30)
    plan = plan_reads(stream, 1, 1, steps)
    batches = stream.batches(1)
    for _ in range(steps):
        next(batches)
    blocks = stream.reader.table.blocks
    blocks._pool.shutdown()  # waits for what was requested
    most = plan.requests + plan.ahead_requests
    assert plan.requests <= blocks.cache.num_fetches <= most
    assert plan.bytes_read <= blocks.cache.fetched_bytes <= plan.bytes_read + plan.ahead_bytes
    assert most <= len(blocks.rows)


@pytest.mark.parametrize("shuffle", [True, {"blocks": 2}, {"blocks": 4}, False], ids=["rows", "2", "4", "none"])
def test_the_cache_that_would_do_does(open_stream, shuffle):
    plan = plan_reads(open_stream(shuffle=shuffle, epochs=1), 1, 1, 1000)
    stream = open_stream(shuffle=shuffle, epochs=1, cache_bytes=plan.needed_cache_bytes)
    assert sum(1 for _ in stream.batches(1)) == plan.steps
    assert stream.reader.table.blocks.cache.num_fetches == plan.distinct_requests


def test_the_command_says_whether_it_is_exact(open_stream, tmp_path):
    total = int(open_stream().reader.table.blocks.bytes.sum())
    for cache_bytes, words in ((total // 10, "fetched: about"), (total, "fetched: ")):
        options = ["--epochs", "1", "--cache-bytes", str(cache_bytes), "--cache", str(tmp_path / "cache")]
        result = CliRunner().invoke(stream_command, ["plan", URL, *options])
        assert result.exit_code == 0, result.output
        assert words in result.output
        assert ("at least: " in result.output) == ("about" in words) == ("about" in result.output)
