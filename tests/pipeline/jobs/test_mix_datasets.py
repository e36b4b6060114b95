"""Datasets in proportions on disk: as near as whole rows allow, whole epochs first, nothing that is not there."""

from collections import Counter

import numpy as np
import pytest
from gristmill_testing.streams import all_rows, write_packed

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.pipeline.jobs.job_pool import open_job_pool
from gristmill.pipeline.jobs.mix_datasets import mix, write_mix
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.shards.dataset import open_dataset
from gristmill.shards.verify import verify
from gristmill.stream import Stream


def mix_in_small_units(given, output, *, workers="auto", backend="serial", progress=False, **options):
    with open_job_pool(workers=workers, backend=backend, ray_address=None, progress=progress) as pool:
        return write_mix(given, output, pool, layout=UnitLayout(unit_bytes=3000, cell_bytes=500), **options)


@pytest.fixture
def inputs(tmp_path):
    web = write_packed(tmp_path / "web", {"web": [40, 60]})
    code = write_packed(tmp_path / "code", {"a": [10], "b": [20]}, seed=1)
    return {"web": web, "code": code}


def sources_of(folder):
    """Of each row in the order of the files, by its origin or else by its folder."""
    dataset = open_dataset(folder)
    index = 0
    for _, lane, shard in dataset.manifest.shards():
        for _ in range(shard.rows):
            yield dataset.origins(index)[0].source if lane == "mixed" else lane
            index += 1


def amounts(folder):
    dataset = open_dataset(folder)
    tokens, rows, documents = Counter(), Counter(), Counter()
    for index, source in enumerate(sources_of(folder)):
        lengths = dataset[index]["lengths"]
        tokens[source] += int(lengths.sum())
        documents[source] += len(lengths)
        rows[source] += 1
    return {"tokens": tokens, "rows": rows, "documents": documents}


@pytest.mark.parametrize("interleave", [True, False])
@pytest.mark.parametrize(("by", "size", "nearness"), [("rows", 80, 0), ("tokens", 800, 6), ("documents", 200, 6)])
def test_proportions(inputs, tmp_path, by, size, nearness, interleave):
    out = tmp_path / "out"
    given = {"web": (inputs["web"], 3), "code": (inputs["code"], 1)}
    shares = mix(given, out, size=size, by=by, max_epochs=1, interleave=interleave)
    found = amounts(out)[by]
    assert {share.source: share.taken for share in shares} == found
    assert abs(found["web"] - size * 3 // 4) <= nearness
    assert abs(found["code"] - size // 4) <= nearness
    assert verify(out)
    assert len(Stream(out, epochs=1)) == len(all_rows(out))
    assert list(open_dataset(out).manifest.splits["train"]) == (["mixed"] if interleave else ["web", "code"])


@pytest.mark.parametrize("interleave", [True, False])
def test_whole_epochs_come_first(inputs, tmp_path, interleave):
    out = tmp_path / "out"
    given = {"web": (inputs["web"], 1), "code": (inputs["code"], 1)}
    web, code = mix(given, out, size=150, by="rows", max_epochs=2.5, interleave=interleave)
    assert (web.whole_epochs, web.partial_rows) == (0, 75)
    assert (code.whole_epochs, code.partial_rows, code.epochs) == (2, 15, 2.5)
    rows = [tuple(row) for row, source in zip(all_rows(out), sources_of(out), strict=True) if source == "code"]
    assert sorted(Counter(rows).values()) == [2] * 15 + [3] * 15
    assert sorted(rows[:30]) == sorted(rows[30:60]) == sorted(set(rows))
    assert verify(out)


@pytest.mark.parametrize("by", ["rows", "tokens"])
def test_epochs_instead_of_weights_and_a_size(inputs, tmp_path, by):
    web, code = mix(inputs, tmp_path / "out", epochs={"web": 1, "code": 2.5}, by=by)
    assert (web.whole_epochs, web.partial_rows, web.taken) == (1, 0, web.available)
    assert code.whole_epochs == 2
    assert code.epochs == pytest.approx(2.5, abs=0.05)
    assert amounts(tmp_path / "out")[by] == {"web": web.taken, "code": code.taken}
    assert verify(tmp_path / "out")


def test_epochs_of_every_dataset_and_nothing_else(inputs, tmp_path):
    with_weights = {name: (folder, 1) for name, folder in inputs.items()}
    for given, options, problem in (
        (inputs, {}, "weights and a size, or epochs"),
        (with_weights, {"size": 5, "epochs": {"web": 1, "code": 1}}, "weights and a size, or epochs"),
        (with_weights, {"epochs": {"web": 1, "code": 1}}, "web must be a folder"),
        (inputs, {"size": 5}, "folder and its weight"),
        (inputs, {"epochs": {"web": 1}}, "code has no epochs"),
        (inputs, {"epochs": {"web": 1, "code": 1, "cod": 1}}, "cod"),
        (inputs, {"epochs": {"web": 1, "code": 0}}, "epochs of code"),
        (inputs, {"epochs": {"web": 1, "code": 1e-6}}, "less than one row"),
    ):
        with pytest.raises(UsageError, match=problem):
            mix(given, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_every_beginning_holds_each_source_in_its_share(inputs, tmp_path):
    out = tmp_path / "out"
    mix_in_small_units({"web": (inputs["web"], 3), "code": (inputs["code"], 2)}, out, size=150, by="rows", max_epochs=2)
    sources = np.array(list(sources_of(out))) == "web"
    assert np.abs(np.cumsum(sources) - 0.6 * np.arange(1, 151)).max() < 1
    manifest = open_dataset(out).manifest
    assert len(manifest.splits["train"]["mixed"]) > 3
    assert {name: share.rows for name, share in manifest.mixed["train"].items()} == {"web": 90, "code": 60}
    assert verify(out)


@pytest.mark.full
@pytest.mark.parametrize("interleave", [True, False])
def test_the_same_bytes_by_any_workers(inputs, tmp_path, interleave):
    manifests = []
    for backend in ("serial", "processes"):
        given = {"web": (inputs["web"], 1), "code": (inputs["code"], 1)}
        options = {"workers": 2, "backend": backend, "progress": False, "interleave": interleave}
        mix_in_small_units(given, tmp_path / backend, size=150, by="rows", max_epochs=2.5, **options)
        manifests.append(open_dataset(tmp_path / backend).manifest)
    assert manifests[0].splits == manifests[1].splits
    assert manifests[0] == manifests[1]
    assert len(list(manifests[0].shards())) > 3
    assert verify(tmp_path / "processes")


def test_what_a_killed_mix_left_is_removed_by_the_next(inputs, tmp_path, monkeypatch):
    import gristmill.pipeline.jobs.mix_datasets as module

    out = tmp_path / "out"
    given = {"web": (inputs["web"], 1), "code": (inputs["code"], 1)}
    with monkeypatch.context() as patched:
        patched.setattr(module, "_publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            mix(given, out, size=60, by="rows")
    mix(given, out, size=20, by="rows")
    assert verify(out)
    with pytest.raises(UsageError, match="holds a dataset already"):
        mix(given, out, size=20, by="rows")


def test_a_mix_killed_while_it_publishes_is_taken_back_by_the_next(inputs, tmp_path, monkeypatch):
    import gristmill.pipeline.publishing.journal as module

    out = tmp_path / "out"
    sources = {"web": (inputs["web"], 1), "code": (inputs["code"], 1)}
    with monkeypatch.context() as patched:
        patched.setattr(module, "dump_manifest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            mix(sources, out, size=60, by="rows", interleave=False)
    assert list(out.glob("train/web/*.arrow"))  # shards are in their places, and no manifest says so
    mix(sources, out, size=20, by="rows")
    assert verify(out)
    assert [path.name for path in (out / "train").iterdir() if path.is_dir()] == ["mixed"]
    assert not (out / ".gristmill").exists()


def test_documents_can_be_mixed_too(tmp_path):
    import gristmill as gm
    from gristmill import steps

    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{name} {n}"}}\n' for n in range(30)))
        source = {name: steps.Read(read=f"{name}.jsonl")}
        recipe = gm.Recipe(
            sources=source, steps=[steps.Write(format="arrow")], output=f"out-{name}", folder=str(tmp_path)
        )
        gm.run(recipe, backend="serial", progress=False)
    out = tmp_path / "mixed"
    mix({name: (tmp_path / f"out-{name}", 1) for name in ("a", "b")}, out, size=20, by="documents")
    texts = [record["text"] for record in open_dataset(out)]
    assert [record["source"] for record in open_dataset(out)] == [text[0] for text in texts]
    assert Counter(text[0] for text in texts) == {"a": 10, "b": 10}
    assert len(set(texts)) == 20
    assert verify(out)
    assert np.array_equal(np.unique([len(texts)]), [20])


def test_at_the_command_line(inputs, tmp_path):
    from gristmill_testing.scripts import run

    arguments = [f"web={inputs['web']}:0.75", f"code={inputs['code']}:0.25", "--by", "rows"]
    done = run("-m", "gristmill", "mix", tmp_path / "out", *arguments, "--size", "0.04K")
    assert done.returncode == 0, done.stderr
    assert "75.00%" in done.stdout
    done = run("-m", "gristmill", "mix", tmp_path / "other", *arguments, "--size", "1M")
    assert done.returncode == 2
    assert "short" in done.stderr
    folders = [f"{name}={folder}" for name, folder in inputs.items()]
    done = run("-m", "gristmill", "mix", tmp_path / "epochs", *folders, "--epochs", "web=1,code=2", "--by", "rows")
    assert "62.50%" in done.stdout  # 100 of 160 rows
    done = run("-m", "gristmill", "mix", tmp_path / "other", "web", "--size", "5")
    assert "write web=out/web:0.7" in done.stderr


@pytest.mark.parametrize("length", [0, 8, 700, -40, -1])
@pytest.mark.parametrize("by", ["rows", "tokens"])
def test_a_shard_cut_short_is_named(inputs, tmp_path, length, by):
    shard = inputs["web"] / "train/web/shard-00001.arrow"
    shard.write_bytes(shard.read_bytes()[:length])
    with pytest.raises(DamagedDatasetError, match=r"shard-00001\.arrow"):
        mix({"web": (inputs["web"], 1)}, tmp_path / "out", size=50, by=by)
    shard.unlink()
    with pytest.raises(DamagedDatasetError, match=r"shard-00001\.arrow"):
        mix({"web": (inputs["web"], 1)}, tmp_path / "out", size=50, by=by)


def test_shares_are_rounded_by_largest_remainders(tmp_path):
    given = {name: (write_packed(tmp_path / name, {name: [9]}), 1) for name in ("a", "b", "c")}
    shares = mix(given, tmp_path / "out", size=5, by="rows")
    assert [share.taken for share in shares] == [2, 2, 1]


@pytest.mark.parametrize("name", ["..", ".x", "a/b", "", 5])
def test_a_name_that_is_no_folder_is_refused(inputs, tmp_path, name):
    with pytest.raises(UsageError, match="cannot be called"):
        mix({name: (inputs["web"], 1)}, tmp_path / "out", size=5, by="rows")


def test_a_folder_of_others_is_left_alone(inputs, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        mix({"web": (inputs["web"], 1)}, tmp_path / "out", size=5, by="rows")
    for wrong in ({}, [], {"web": inputs["web"]}, {"web": (inputs["web"], 1, 2)}):
        with pytest.raises(UsageError):
            mix(wrong, tmp_path / "out", size=5, by="rows")
