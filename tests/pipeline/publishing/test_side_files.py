"""`write: {energon: true}`: the indexes are the offsets of samples, and Energon's loader reads every sample once."""

import json
import struct
import tarfile

import pytest
from gristmill_testing.pictures import photo

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("energon")
    (root / "in").mkdir()
    for number in range(12):
        (root / "in" / f"{number:03d}.jpg").write_bytes(photo(number, width=8, height=8))
    written = steps.Write(format="webdataset", energon=True, max_shard_samples=4)
    recipe = gm.Recipe(
        sources={"s": steps.Read(read=str(root / "in"))},
        steps=[steps.Split(validation=0.3), written],
        output=str(root / "out"),
    )
    gm.run(recipe, workers=1, backend="serial")
    assert gm.open_dataset(root / "out").verify().problems == []
    return root / "out"


def test_indexes_are_the_offsets_of_samples(made):
    info = json.loads((made / ".nv-meta/.info.json").read_text())
    assert sum(info["shard_counts"].values()) == 12
    splits = json.loads((made / ".nv-meta/split.yaml").read_text())["split_parts"]
    assert splits.keys() == {"train", "val"}
    for name, count in info["shard_counts"].items():
        data = (made / f"{name}.idx").read_bytes()
        offsets = struct.unpack(f"<{len(data) // 8}Q", data)
        with tarfile.open(made / name) as tar:
            keys: dict[str, int] = {}
            end = 0
            for member in tar:
                keys.setdefault(member.name.partition(".")[0], member.offset)
                end = member.offset_data + -(-member.size // 512) * 512
        assert offsets == (*keys.values(), end)
        assert len(keys) == count


@pytest.mark.filterwarnings("ignore")
def test_energon_reads_every_sample_once(made):
    energon = pytest.importorskip("megatron.energon")

    @energon.stateless
    def cook(sample):
        return energon.Sample(**energon.basic_sample_keys(sample))

    class Encoder(energon.DefaultTaskEncoder):
        cookers = [energon.Cooker(cook)]  # noqa: RUF012

        def batch(self, samples):
            return [sample.__key__ for sample in samples]

        def encode_batch(self, batch):
            return batch

    keys = []
    for part in ("train", "val"):
        config = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
        dataset = energon.get_train_dataset(
            str(made),
            batch_size=2,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            worker_config=config,
            task_encoder=Encoder(),
            repeat=False,
            split_part=part,
        )
        keys += [key for batch in energon.get_loader(dataset) for key in batch]
    assert sorted(keys) == [f"{number:03d}" for number in range(12)]


def test_only_samples_in_tars(tmp_path):
    with pytest.raises(UsageError, match="webdataset"):
        steps.Write(format="arrow", energon=True)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    recipe = gm.Recipe(
        sources={"s": steps.Read(read=str(tmp_path / "a.jsonl"))},
        steps=[steps.Write(format="webdataset", energon=True)],
        output=str(tmp_path / "out"),
    )
    with pytest.raises(UsageError, match="samples"):
        gm.run(recipe, workers=1, backend="serial")
