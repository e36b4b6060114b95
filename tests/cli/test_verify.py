import json
import shutil


def test_a_whole_dataset_is_as_written(gristmill, dataset):
    assert "37 records" in gristmill("verify", dataset).out


def test_a_damaged_shard_is_named(gristmill, dataset, tmp_path):
    copy = shutil.copytree(dataset, tmp_path / "copy")
    shard = next((copy / "train").rglob("shard-*"))
    shard.write_bytes(shard.read_bytes().replace(b"document 1", b"dokument 1"))
    assert shard.name in gristmill("verify", copy, fails=1).out
    found = json.loads(gristmill("verify", copy, "--json", fails=1).out)
    assert found["ok"] is False
    assert [problem["path"] for problem in found["problems"]] == [shard.relative_to(copy).as_posix()]


def test_no_dataset_is_wrong_use(gristmill, tmp_path):
    gristmill("verify", tmp_path, fails=2)
