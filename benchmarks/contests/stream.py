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


COLD, BARE = "cold, shuffled blocks", "bare download to disk, 8 threads"
MEMORY = "bare download, thrown away"
WARM, LOCAL, FULL = "warm cache", "local disk", "full shuffle, a cache of a tenth"
REMOTE_PEERS = ("litdata", "mosaicml-streaming")


def _remote_sides(setting: Setting) -> list[Side]:
    from benchmarks.inputs.object_store import list_variables, upload_dataset
    from benchmarks.inputs.token_datasets import indexed_rows

    rows = setting.scaled(8192, at_least=1024)
    folder = indexed_rows(setting, num_shards=8, rows_a_shard=rows, row_length=2048)
    url, variables = upload_dataset(folder, "rows"), list_variables()
    empty, kept = str(setting.output / "cache"), str(setting.folder / "remote-cache")

    def ours(name: str, key: str, data: str, cache: str) -> Side:
        return Side(name, ["-m", "benchmarks.sides.stream_remote", key, data, cache], variables=variables)

    def peer(name: str, workers: int) -> Side:
        words = ["-m", "benchmarks.sides.stream_remote_peers", name, str(folder), str(workers), str(setting.output)]
        return Side(_peer_name(name, workers), words, "streaming", max_rounds=2, variables=variables)

    return [
        ours(COLD, "cold", url, empty),
        ours(BARE, "bare", url, empty),
        ours(MEMORY, "memory", url, empty),
        ours(WARM, "warm", url, kept),
        ours(LOCAL, "local", str(folder), empty),
        ours(FULL, "full", url, empty),
        *(peer(name, workers) for name in REMOTE_PEERS for workers in (0, 2)),
    ]


def _remote_first_sides(setting: Setting) -> list[Side]:
    from benchmarks.inputs.object_store import list_variables, upload_dataset
    from benchmarks.inputs.token_datasets import many_shards

    url = upload_dataset(many_shards(setting, int(setting.scaled(10_000)), has_index=True), "many")
    words = ["-m", "benchmarks.sides.stream_remote", "first", url, str(setting.output / "cache")]
    return [Side(OURS, words, variables=list_variables())]


CONTESTS = [
    Contest(
        name="stream-remote",
        work="one epoch of rows of 2,048 tokens from an object store on the same machine",
        make_sides=_remote_sides,
        claims=[
            Ratio(BARE, 0.8, "inner", side=COLD),
            Ratio(MEMORY, None, "inner", side=COLD),
            Ratio(LOCAL, 0.9, "inner", side=WARM),
            *(Ratio(_peer_name(name, workers), 1, "inner", side=COLD) for name in REMOTE_PEERS for workers in (0, 2)),
            Limit("bytes read for each byte stored", 1, "", lambda run: run["facts"]["read_twice"], side=COLD),
            Limit("kB read for a row", None, "kB", lambda run: run["facts"]["kilobytes_a_row"], side=FULL),
        ],
        unit="rows",
        data=lambda setting: "65,536 rows of uint16 in 8 shards at full size (270 MB), blocks of 4 MiB; SeaweedFS",
    ),
    Contest(
        name="stream-remote-start",
        work="the first batch after a resume at row 10^9 of 10,000 shards on an object store",
        make_sides=_remote_first_sides,
        claims=[Limit("seconds until the first batch", 1, "s", lambda run: run["inner"])],
        unit="run",
    ),
    Contest(
        name="stream",
        work="shuffled batches of 32 rows of 2,048 tokens as int64 tensors",
        make_sides=_sides,
        claims=[
            Ratio("datasets, 0 workers", 3, "inner"),
            *(Ratio(_peer_name(name, 0), 3, "inner") for name in PEERS[1:]),
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
