"""The shards of a mix: the same bytes by any workers, and damage is not copied."""

import pytest
from gristmill_testing.streams import all_rows, write_packed

from gristmill.core.errors import DamagedDatasetError
from gristmill.pipeline.jobs.mix_datasets import mix


@pytest.fixture
def inputs(tmp_path):
    web = write_packed(tmp_path / "web", {"web": [40, 60]})
    code = write_packed(tmp_path / "code", {"a": [10], "b": [20]}, seed=1)
    return {"web": web, "code": code}


def test_a_larger_size_only_adds_rows(inputs, tmp_path):
    for size in (20, 50):
        mix({"web": (inputs["web"], 1)}, tmp_path / str(size), size=size, by="rows")
    assert set(map(tuple, all_rows(tmp_path / "20"))) <= set(map(tuple, all_rows(tmp_path / "50")))


def test_damage_is_not_copied(inputs, tmp_path):
    shard = next((inputs["web"] / "train/web").glob("*.arrow"))
    content = bytearray(shard.read_bytes())
    content[600] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DamagedDatasetError, match="not as it was written"):
        mix({"web": (inputs["web"], 1)}, tmp_path / "out", size=50, by="rows")
    assert not (tmp_path / "out/manifest.json").exists()


def test_any_damaged_byte_is_noticed_or_harmless(inputs, tmp_path):
    shard = inputs["web"] / "train/web/shard-00001.arrow"
    content = shard.read_bytes()
    for number, place in enumerate(range(0, len(content), 397)):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        shard.write_bytes(damaged)
        with pytest.raises(DamagedDatasetError, match=r"shard-00001\.arrow"):
            mix({"web": (inputs["web"], 1)}, tmp_path / str(number), size=500, by="tokens")
