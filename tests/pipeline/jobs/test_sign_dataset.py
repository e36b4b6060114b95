"""`keep_signatures`: a new dump against earlier datasets by their signatures is a run from nothing with them first.

For near copies up to pairs that are not compared: see `test_what_goes_is_similar_to_what_stays`.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash
from gristmill_testing.duplicates import jaccard, shingles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.pipeline.barriers.deduplicate import sign
from gristmill.shards.kept_signatures import load_kept_signatures
from gristmill.storage.locations import parse_location

WORDS = [f"w{number}" for number in range(400)]


def make_texts(seed, count, similar_to=()):
    """Make texts of 40 words; some are copies or near copies of others."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        pool = [*similar_to, *texts]
        words = rng.choice(pool).split() if pool and rng.random() < 0.5 else rng.choices(WORDS, k=40)
        for _ in range(rng.choice([0, 0, 1, 2, 8])):
            words[rng.randrange(len(words))] = rng.choice(WORDS)
        texts.append(" ".join(words))
    return texts


def write_texts(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def run(folder, sources, *, name, update=False, **keys):
    recipe = gm.Recipe(
        output=str(folder / name),
        sources={source: steps.Read(read=str(path)) for source, path in sources.items()},
        steps=[steps.Deduplicate(max_source_loss=1.0, **keys), steps.Write(format="jsonl")],
    )
    return gm.run(recipe, backend="serial", progress=False, update=update)


def read_texts(folder, source="new"):
    paths = sorted((folder / "train" / source).glob("*.jsonl"))
    return [json.loads(line)["text"] for path in paths for line in path.read_text().splitlines()]


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(1, 2))
def test_the_result_is_that_of_a_run_from_nothing(tmp_path_factory, seed, num_earlier):
    folder = tmp_path_factory.mktemp("dumps")
    kind, earlier = "exact", {}
    texts = []
    for number in range(num_earlier):
        texts += make_texts(seed + number, 40, texts)
        write_texts(folder / f"raw{number}.jsonl", texts[-40:])
        earlier[f"old{number}"] = folder / f"raw{number}.jsonl"
        against = {"against": {"read": [str(folder / f"out{n}") for n in range(number)]}} if number else {}
        run(folder, {"old": earlier[f"old{number}"]}, name=f"out{number}", kind=kind, keep_signatures=True, **against)
    write_texts(folder / "new.jsonl", make_texts(seed + 9, 60, texts))
    outputs = [str(folder / f"out{number}") for number in range(num_earlier)]
    run(folder, {"new": folder / "new.jsonl"}, name="next", kind=kind, against={"read": outputs})
    run(folder, {**earlier, "new": folder / "new.jsonl"}, name="whole", kind=kind, prefer=list(earlier))
    assert read_texts(folder / "next") == read_texts(folder / "whole")
    assert len(read_texts(folder / "next")) < 60


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6))
def test_what_goes_is_similar_to_what_stays(tmp_path_factory, seed):
    """The law for near copies, against signatures as from nothing, in families of which not all pairs are compared."""
    folder = tmp_path_factory.mktemp("families")
    rng = random.Random(seed)
    founders = [rng.choices(WORDS, k=60) for _ in range(3)]
    family = [
        " ".join(rng.choice(WORDS) if rng.random() < 0.03 else word for word in founders[n % 3]) for n in range(180)
    ]
    old, new = family[:90], family[90:]
    write_texts(folder / "old.jsonl", old)
    write_texts(folder / "new.jsonl", new)
    run(folder, {"old": folder / "old.jsonl"}, name="first", keep_signatures=True)
    run(folder, {"new": folder / "new.jsonl"}, name="next", against={"read": [str(folder / "first")]})
    run(folder, {"old": folder / "old.jsonl", "new": folder / "new.jsonl"}, name="whole", prefer=["old"])
    earlier = read_texts(folder / "first", "old")
    assert read_texts(folder / "whole", "old") == earlier
    for kept in (read_texts(folder / "next"), read_texts(folder / "whole")):
        gone = set(new) - set(kept)
        stays = [shingles(text) for text in earlier + kept]
        assert gone
        assert all(any(jaccard(shingles(text), other) >= 0.8 for other in stays) for text in gone)


@pytest.fixture
def dumps(tmp_path):
    """Two shards of earlier documents, with signatures; the copies in the new dump are of the first one only."""
    first, second = make_texts(1, 30), make_texts(2, 30)
    write_texts(tmp_path / "raw/a.jsonl", first)
    write_texts(tmp_path / "raw/b.jsonl", second)
    recipe = gm.Recipe(
        output=str(tmp_path / "old"),
        sources={
            "a": steps.Read(read=str(tmp_path / "raw/a.jsonl")),
            "b": steps.Read(read=str(tmp_path / "raw/b.jsonl")),
        },
        steps=[steps.Deduplicate(max_source_loss=1.0, keep_signatures=True), steps.Write(format="jsonl")],
    )
    gm.run(recipe, backend="serial", progress=False)
    write_texts(tmp_path / "new.jsonl", [*make_texts(3, 20), *first[:10], " ".join([*first[11].split()[:-1], "x"])])
    return tmp_path


def damage_in_place(path):
    """Overwrite a file with other bytes, in the same size and with the same time."""
    stat = path.stat()
    path.write_bytes(b"x" * stat.st_size)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_only_the_texts_of_candidates_are_read(dumps):
    run(dumps, {"new": dumps / "new.jsonl"}, name="reference", against=str(dumps / "old"))
    damage_in_place(dumps / "old/train/b/shard-00000.jsonl")
    run(dumps, {"new": dumps / "new.jsonl"}, name="next", against=str(dumps / "old"))
    assert read_texts(dumps / "next") == read_texts(dumps / "reference")
    assert len(read_texts(dumps / "next")) < 31
    damage_in_place(dumps / "old/train/a/shard-00000.jsonl")
    with pytest.raises(DamagedDatasetError, match="documents in its cell"):
        run(dumps, {"new": dumps / "new.jsonl"}, name="broken", against=str(dumps / "old"))


def test_without_texts_there_are_only_estimates(dumps):
    run(dumps, {"new": dumps / "new.jsonl"}, name="reference", against=str(dumps / "old"))
    for shard in (dumps / "old/train").rglob("*.jsonl"):
        shard.unlink()
    with pytest.raises(UsageError, match="are gone") as raised:
        run(dumps, {"new": dumps / "new.jsonl"}, name="next", against=str(dumps / "old"))
    assert "verify: signature" in raised.value.help
    run(dumps, {"new": dumps / "new.jsonl"}, name="next", against=str(dumps / "old"), verify="signature")
    assert read_texts(dumps / "next") == read_texts(dumps / "reference")
    with pytest.raises(UsageError, match="other settings"):
        run(dumps, {"new": dumps / "new.jsonl"}, name="n", against=str(dumps / "old"), verify="signature", ngram=3)


def test_an_update_signs_only_what_is_new(dumps):
    before = load_kept_signatures(dumps / "old")
    times = {file.path: (dumps / "old" / file.path).stat().st_mtime_ns for file in before.files()}
    (dumps / "old/signatures/notes.txt").write_text("not made by a run")
    write_texts(dumps / "raw/b.jsonl", [*make_texts(2, 30), *make_texts(7, 5)])
    recipe = gm.Recipe(
        output=str(dumps / "old"),
        sources={"a": steps.Read(read=str(dumps / "raw/a.jsonl")), "b": steps.Read(read=str(dumps / "raw/b.jsonl"))},
        steps=[steps.Deduplicate(max_source_loss=1.0, keep_signatures=True), steps.Write(format="jsonl")],
    )
    gm.run(recipe, backend="serial", progress=False, update=True)
    after = load_kept_signatures(dumps / "old")
    reused = {file.path for file in after.files()} & times.keys()
    assert len(reused) == len(before.shards[0].files)
    assert all((dumps / "old" / path).stat().st_mtime_ns == times[path] for path in reused)
    names = {f"signatures/{path.name}" for path in (dumps / "old/signatures").iterdir()}
    assert names == {file.path for file in after.files()} | {"signatures/index.json", "signatures/notes.txt"}


def test_missing_signatures_are_made_by_the_same_run_again(dumps):
    before = (dumps / "old/signatures/index.json").read_bytes()
    manifest = (dumps / "old/manifest.json").read_bytes()
    recipe = gm.Recipe(
        output=str(dumps / "old"),
        sources={"a": steps.Read(read=str(dumps / "raw/a.jsonl")), "b": steps.Read(read=str(dumps / "raw/b.jsonl"))},
        steps=[steps.Deduplicate(max_source_loss=1.0, keep_signatures=True), steps.Write(format="jsonl")],
    )
    for lost in ["signatures/index.json", load_kept_signatures(dumps / "old").files()[1].path]:
        Path(dumps / "old" / lost).unlink()
        assert gm.run(recipe, backend="serial", progress=False).was_up_to_date
        assert (dumps / "old/signatures/index.json").read_bytes() == before
    assert (dumps / "old/manifest.json").read_bytes() == manifest


def test_damaged_signatures_are_refused(dumps):
    damage_in_place(dumps / "old" / load_kept_signatures(dumps / "old").files()[2].path)
    with pytest.raises(DamagedDatasetError, match="not what was written"):
        run(dumps, {"new": dumps / "new.jsonl"}, name="next", against=str(dumps / "old"))
    (dumps / "old/signatures/index.json").write_text("{")
    with pytest.raises(DamagedDatasetError, match="cannot be read"):
        run(dumps, {"new": dumps / "new.jsonl"}, name="next", against=str(dumps / "old"))


def change_index(folder, change):
    """Change the signatures of the first shard as a stranger could, with checksums that fit."""
    index = json.loads((folder / "signatures/index.json").read_bytes())
    change(index["shards"][0])
    (folder / "signatures/index.json").write_text(json.dumps(index))


def change_file(folder, number, change):
    def seal(shard):
        path = folder / shard["files"][number]["path"]
        content = change(path.read_bytes())
        path.write_bytes(content)
        shard["files"][number].update(bytes=len(content), xxh3=xxhash.xxh3_64_hexdigest(content))

    change_index(folder, seal)


def test_signatures_of_a_stranger_are_refused(dumps):
    pristine = {path: path.read_bytes() for path in (dumps / "old/signatures").iterdir()}
    forged_indexes = [
        lambda shard: shard["files"].pop(),
        lambda shard: shard.update(rows=0, cell_rows=[]),
        lambda shard: shard["counts"].__setitem__(1, shard["counts"][1] - 1),
    ]
    forged_files = [lambda content: content[:-1], lambda content: b"\xff" * len(content)]
    changes = [lambda folder, change=change: change_index(folder, change) for change in forged_indexes]
    changes += [
        lambda folder, number=number, change=change: change_file(folder, number, change)
        for number in range(4)
        for change in forged_files[: 1 if number == 1 else 2]  # any bytes may be sketches
    ]
    for change in changes:
        change(dumps / "old")
        with pytest.raises(DamagedDatasetError, match="signatures"):
            run(dumps, {"new": dumps / "new.jsonl"}, name="next", against=str(dumps / "old"))
        for path, content in pristine.items():
            path.write_bytes(content)
    run(dumps, {"new": dumps / "new.jsonl"}, name="next", against=str(dumps / "old"))


def test_what_a_killed_run_left_is_removed(dumps):
    left = dumps / "old/signatures/00000000-0000000000000000.keys"
    left.write_bytes(b"of a shard that is gone")
    recipe = gm.Recipe(
        output=str(dumps / "old"),
        sources={"a": steps.Read(read=str(dumps / "raw/a.jsonl")), "b": steps.Read(read=str(dumps / "raw/b.jsonl"))},
        steps=[steps.Deduplicate(max_source_loss=1.0, keep_signatures=True), steps.Write(format="jsonl")],
    )
    assert gm.run(recipe, backend="serial", progress=False).was_up_to_date
    assert not left.exists()


KILLED = """
import os, signal, sys
import gristmill as gm
left = [int(sys.argv[2])]
def die(event, arguments):
    if event in ("os.rename", "os.link") and "/signatures/" in str(arguments[1]):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
gm.run(gm.load_recipe(sys.argv[1]), backend="serial", progress=False)
"""


def read_signatures(folder):
    return {path.name: path.read_bytes() for path in (folder / "signatures").iterdir()}


@pytest.mark.parametrize("num_done", [5, 8], ids=["in the second shard", "before the index"])
def test_a_run_that_was_killed_while_it_signed_is_completed(dumps, num_done):
    recipe = gm.Recipe(
        output=str(dumps / "killed"),
        sources={"a": steps.Read(read=str(dumps / "raw/a.jsonl")), "b": steps.Read(read=str(dumps / "raw/b.jsonl"))},
        steps=[steps.Deduplicate(max_source_loss=1.0, keep_signatures=True), steps.Write(format="jsonl")],
    )
    (dumps / "recipe.yaml").write_text(gm.dump_recipe(recipe))
    words = [sys.executable, "-c", KILLED, str(dumps / "recipe.yaml"), str(num_done)]
    done = subprocess.run(words, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    whole, left = (read_signatures(dumps / name) for name in ("old", "killed"))
    assert len(whole.keys() & left.keys()) == num_done
    assert "index.json" not in left
    manifest = (dumps / "killed/manifest.json").read_bytes()
    assert gm.run(recipe, backend="serial", progress=False).was_up_to_date
    assert read_signatures(dumps / "killed") == whole
    assert (dumps / "killed/manifest.json").read_bytes() == manifest


def test_what_cannot_be_signed_is_refused_before_the_work(tmp_path):
    write_texts(tmp_path / "a.jsonl", ["one"])
    (tmp_path / "b.jsonl").write_text('{"body": "two"}')
    sources = {"a": steps.Read(read=str(tmp_path / "a.jsonl"))}
    kept = [steps.Deduplicate(keep_signatures=True), steps.Write(format="jsonl")]
    with pytest.raises(UsageError, match="on an object store"):
        gm.run(gm.Recipe(output="memory://here/out", sources=sources, steps=kept), backend="serial")
    sources["b"] = steps.Read(read=str(tmp_path / "b.jsonl"), text="body")
    with pytest.raises(UsageError, match="different fields: body, text"):
        gm.plan(gm.Recipe(output=str(tmp_path / "out"), sources=sources, steps=kept))


def test_tokens_cannot_be_signed(tmp_path):
    write_texts(tmp_path / "a.jsonl", ["one"])
    recipe = gm.Recipe(
        output=str(tmp_path / "out"),
        sources={"a": steps.Read(read=str(tmp_path / "a.jsonl"))},
        steps=[steps.Deduplicate(keep_signatures=True), steps.Tokenize(tokenizer="gpt2")],
    )
    with pytest.raises(UsageError, match="keep_signatures"):
        gm.plan(recipe)


def test_signatures_on_a_store(s3, tmp_path, monkeypatch):
    """They are kept, completed, updated and used there as in a folder."""
    old, new = make_texts(1, 40), make_texts(2, 30)
    write_texts(tmp_path / "old.jsonl", old)
    write_texts(tmp_path / "more.jsonl", new[:10])
    write_texts(tmp_path / "new.jsonl", [*make_texts(3, 60, [*old, *new]), *new])

    def run_there(output, read, update=False, **keys):
        recipe = gm.Recipe(
            output=output,
            sources={"new": steps.Read(read=f"{tmp_path}/{read}.jsonl")},
            steps=[steps.Deduplicate(max_source_loss=1.0, **keys), steps.Write(format="jsonl")],
        )
        return gm.run(recipe, backend="serial", progress=False, update=update)

    places = {"folder": str(tmp_path / "folder"), "store": f"{s3.url}/data/store"}
    for place in places.values():
        run_there(place, "old", keep_signatures=True)
    lost = f"data/store/{load_kept_signatures(parse_location(places['store'])).files()[0].path}"
    s3.delete(lost)
    run_there(places["store"], "old", keep_signatures=True)
    assert lost in s3.list_keys()
    for place in places.values():
        run_there(place, "[om]*", update=True, keep_signatures=True)
    index = load_kept_signatures(parse_location(places["store"]))
    names = {file.path for file in index.files()} | {"signatures/index.json"}
    assert {key.removeprefix("data/store/") for key in s3.list_keys("data/store/signatures/")} == names
    copied = []
    run_copy = sign.run_copy
    monkeypatch.setattr(sign, "run_copy", lambda task, context: copied.append(task) or run_copy(task, context))
    hashes = set()
    for number, read in enumerate(places.values()):
        result = run_there(str(tmp_path / f"next{number}"), "new", against={"read": [read]})
        hashes.add(result.manifest.dataset_hash)
    assert len(hashes) == 1
    assert len(copied) == 2 * len(index.shards)


def test_an_index_that_nests_too_deeply_is_damage(tmp_path):
    (tmp_path / "signatures").mkdir()
    (tmp_path / "signatures" / "index.json").write_text('{"files": ' + '{"a":' * 20_000)
    with pytest.raises(DamagedDatasetError, match=r"index\.json"):
        load_kept_signatures(tmp_path)
