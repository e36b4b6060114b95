"""Files of others that several tests stream."""

import json

import pytest
from gristmill_testing.foreign_files import IDS, TEXTS, encode_array, write_tar

from gristmill.stream.lanes import table_blocks


@pytest.fixture(scope="session")
def tars(tmp_path_factory):
    """Three tars with a text, ids and a dict in each sample, 60 samples in all."""
    folder = tmp_path_factory.mktemp("tars")
    samples = [
        (number, [("txt", text.encode()), ("npy", encode_array(ids)), ("json", json.dumps({"n": number}).encode())])
        for number, (text, ids) in enumerate(zip(TEXTS, IDS, strict=True))
    ]
    for shard, part in enumerate((samples[:30], samples[30:31], samples[31:])):
        write_tar(folder / f"t-{shard}.tar", part)
    return folder


@pytest.fixture(autouse=True)
def index_folder(tmp_path, monkeypatch):
    """A folder of its own for what passes over foreign files find out."""
    folder = tmp_path / "indexes"
    monkeypatch.setattr(table_blocks, "choose_cache_folder", lambda home, platform, name: str(folder / name))
    return folder
