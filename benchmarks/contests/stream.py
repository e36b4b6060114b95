"""Rows into a training loop: shuffled batches of 32 rows of 2,048 tokens as int64 tensors, from a warm page cache."""

from __future__ import annotations

from benchmarks.harness.contest import OURS, Contest, Limit, Ratio, Setting, Side

PEERS = ("datasets", "litdata", "mosaicml-streaming", "webdataset")
GATHER = "numpy gather and widen, one mapped array"
THREAD, WORKERS = "TorchLoader, 1 thread (its default)", "DataLoader(TorchDataset), 2 workers"
THREE, NUMBA = "with labels and positions", "bare numba, labels and positions"
SECONDS = "2"


def _sides(setting: Setting) -> list[Side]:
    from benchmarks.inputs.token_datasets import shuffled_rows

    folder = shuffled_rows(setting, num_shards=8, rows_a_shard=setting.scaled(2048, at_least=256), row_length=2048)

    def ours(name: str, key: str) -> Side:
        return Side(name, ["-m", "benchmarks.sides.stream_ours", key, str(folder), SECONDS])

    def peer(name: str, workers: int) -> Side:
        words = ["-m", "benchmarks.sides.stream_peers", name, str(folder), str(workers), SECONDS]
        environment = "hugging-face" if name == "datasets" else "streaming"
        return Side(_peer_name(name, workers), words, environment, max_rounds=2)

    return [
        ours(OURS, "loader"),
        ours(THREAD, "loader-1-thread"),
        ours(WORKERS, "data-loader"),
        ours(GATHER, "numpy"),
        ours(THREE, "three"),
        ours(NUMBA, "numba"),
        *(peer(name, workers) for name in PEERS for workers in (0, 2)),
    ]


def _peer_name(name: str, workers: int) -> str:
    return f"{name}, {workers} workers"


def _first_sides(setting: Setting) -> list[Side]:
    from benchmarks.inputs.token_datasets import many_shards

    folder = many_shards(setting, int(setting.scaled(10_000)))
    return [Side(OURS, ["-m", "benchmarks.sides.stream_ours", "first", str(folder), SECONDS])]


CONTESTS = [
    Contest(
        name="stream",
        work="shuffled batches of 32 rows of 2,048 tokens as int64 tensors",
        make_sides=_sides,
        claims=[
            Ratio("datasets, 0 workers", 3, "inner", on_front_page=True),
            *(Ratio(_peer_name(name, 0), 3, "inner", on_front_page=name == PEERS[2]) for name in PEERS[1:]),
            *(Ratio(_peer_name(name, 2), None, "inner") for name in PEERS),
            Ratio("datasets, 2 workers", 4, "inner", side=WORKERS),
            Ratio(GATHER, 0.5, "inner"),
            Ratio(NUMBA, 0.5, "inner", side=THREE),
            Ratio(THREAD, None, "inner"),
            Ratio(WORKERS, None, "inner"),
        ],
        unit="rows",
        data=lambda setting: (
            "16,384 rows of uint16 in 8 shards at full size, warm page cache; `TorchLoader`, no thread"
        ),
    ),
    Contest(
        name="stream-start",
        work="the first batch of a dataset of 10,000 shards",
        make_sides=_first_sides,
        claims=[
            Limit("seconds, numba loaded too", 0.5, "s", lambda run: run["facts"]["first_s"]),
            Limit("seconds, resumed at row 10^9", None, "s", lambda run: run["facts"]["resumed_s"]),
            Limit("memory, all shards touched", 100, "MiB", lambda run: run["facts"]["memory_mib"]),
        ],
        unit="run",
        rounds=2,
    ),
]
