"""Outputs on stores: the same dataset as on a local disk, and nothing left over."""

import json
import random
import uuid

import pytest
from gristmill_testing import small_tokenizers
from gristmill_testing.buckets import Bucket
from gristmill_testing.faulty_proxy import FaultyProxy

import gristmill as gm
from gristmill import Recipe, steps
from gristmill.cli.main import main
from gristmill.cli.running.run import print_outcome
from gristmill.core.errors import FolderLockedError, LeaseLostError, NotUpToDateError, UsageError
from gristmill.core.quantities import format_bytes
from gristmill.core.recipe import Source
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.publishing import publish as publishing
from gristmill.pipeline.publishing.clean import clean
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.receipts import Receipts
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.pipeline.work_folder import work_path
from gristmill.storage.commit import write_file
from gristmill.storage.folders import open_folder
from gristmill.storage.leases import describe_process
from gristmill.storage.locations import StorePath, parse_location
from gristmill.storage.stores import credentials as options
from gristmill.storage.stores.open_store import forget_stores
from gristmill.storage.user_cache import choose_copies_folder

WORDS = [f"word{number}" for number in range(300)]


@pytest.fixture(autouse=True)
def copies(tmp_path):
    choose_copies_folder(tmp_path / "copies")
    yield tmp_path / "copies"
    choose_copies_folder(None)


@pytest.fixture
def corpus(tmp_path):
    """Two sources with copies and a broken record, in several units."""
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(3, 80))) for _ in range(700)]
    texts += rng.choices(texts, k=100)
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(4):
        lines = [json.dumps({"text": text, "n": n}) for n, text in enumerate(texts[number::4])]
        (folder / f"web-{number}.jsonl").write_text("\n".join([*lines, "{broken"]) + "\n")
    (folder / "books.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts[:200]))
    return folder


@pytest.fixture(params=["memory", "s3"])
def output(request):
    if request.param == "s3":
        return f"{request.getfixturevalue('s3').url}/datasets/out"
    return f"memory://{uuid.uuid4().hex}/out"


def make_recipe(corpus, output, *more, **options):
    sources = {
        "web": Source(steps.Read(read=f"{corpus}/web-*.jsonl"), [steps.Sample(fraction=0.9)]),
        "books": steps.Read(read=f"{corpus}/books.jsonl"),
    }
    every_kind = [steps.Length(min_chars=40), steps.Deduplicate(), steps.Shuffle(), steps.Split(validation=0.1)]
    return Recipe(sources=sources, steps=[*every_kind, *more], output=str(output), max_quarantine=0.1, **options)


def simple_recipe(corpus, output, min_chars=40):
    read = steps.Read(read=f"{corpus}/web-*.jsonl")
    return Recipe(
        sources={"web": read}, steps=[steps.Length(min_chars=min_chars)], output=str(output), max_quarantine=0.1
    )


LAYOUT = UnitLayout(unit_bytes=60_000, min_group_bytes=20_000)


def run(recipe, *, backend="serial", layout=LAYOUT, **options):
    return run_recipe(recipe, RunOptions(backend=backend, progress=False, layout=layout, **options))


def list_files(output):
    return {
        path for path, _ in open_folder(parse_location(output)).list_below() if not path.startswith(".gristmill/lease/")
    }


def shard_hashes(manifest):
    return [(split, source, shard.xxh3, shard.rows) for split, source, shard in manifest.shards()]


def assert_complete(output, manifest):
    """Only what the manifest names, what follows from it, and the receipts of an update are there."""
    named = {file.path for file in manifest.stored_files()}
    rest = list_files(output) - named
    assert all(
        path.startswith(".gristmill/") or path.endswith(("state.json", "dataset_info.json")) or "/" not in path
        for path in rest
    ), rest
    kept = (parse_location(output) / ".gristmill/units.jsonl").read_bytes().decode()
    assert not [path for path in rest if path.startswith(".gristmill/receipts")]
    assert not [
        path for path in rest if path.startswith((".gristmill/work", ".gristmill/stored")) and f'"{path}"' not in kept
    ]
    assert gm.open_dataset(output).verify().problems == []


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "webdataset", "packed", "mixed"])
def test_the_same_dataset_as_on_a_local_disk(corpus, output, tmp_path, kind):
    more = {"keep_dropped": "samples"}
    if kind in ("packed", "mixed"):
        small_tokenizers.trained(tmp_path / "tokenizer")
        last = [steps.Tokenize(tokenizer=str(tmp_path / "tokenizer")), steps.Pack(row_length=64)]
        if kind == "mixed":
            last.insert(0, steps.Mix(weights={"web": 0.7, "books": 0.3}, size=300, by="documents"))
    else:
        last = [steps.Write(format=kind)]
    local = run(make_recipe(corpus, tmp_path / "local", *last, **more)).manifest
    stored = run(make_recipe(corpus, output, *last, **more)).manifest
    assert stored.dataset_hash == local.dataset_hash
    assert shard_hashes(stored) == shard_hashes(local)
    assert stored.books == local.books
    assert [file.xxh3 for file in stored.stored_files()] == [file.xxh3 for file in local.stored_files()]
    assert_complete(output, stored)
    assert run(make_recipe(corpus, output, *last, **more)).was_up_to_date
    leases = [path for path, _ in open_folder(parse_location(output)).list_below() if "/lease/" in path]
    assert len(leases) == 2, "runs that had nothing to do left files"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["jsonl", "mixed"])
def test_damaged_objects_are_noticed_and_made_again(corpus, output, tmp_path, monkeypatch, caplog, kind):
    """Of each kind of task one object of intermediate data is flipped, cut or removed as soon as it has its receipt."""
    small_tokenizers.trained(tmp_path / "tokenizer")
    last = [steps.Write(format="jsonl")]
    if kind == "mixed":
        last = [
            steps.Mix(weights={"web": 0.7, "books": 0.3}, size=300, by="documents"),
            steps.Tokenize(tokenizer=str(tmp_path / "tokenizer")),
            steps.Pack(row_length=64),
        ]
    local = run(make_recipe(corpus, tmp_path / "local", *last)).manifest
    rng, damaged, real = random.Random(1), {}, Receipts.add

    def add(receipts, fingerprint, result):
        real(receipts, fingerprint, result)
        files = [file for file in getattr(result, "files", list)() if file.bytes]
        name = getattr(result, "stage", type(result).__name__)
        if files and damaged.get(name, 0) < 2:
            damaged[name] = damaged.get(name, 0) + 1
            store, key = (parse_location(output) / rng.choice(files).path).open_store()
            content, fault = bytearray(store.read(key)), len(damaged) % 3
            if fault == 0:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            if fault < 2:
                store.put(key, content if fault == 0 else content[: rng.randrange(len(content))])
            else:
                store.delete([key])

    monkeypatch.setattr(Receipts, "add", add)
    stored = run(make_recipe(corpus, output, *last)).manifest
    assert shard_hashes(stored) == shard_hashes(local)
    assert_complete(output, stored)
    assert len(damaged) > 4
    assert sum("is run again" in record.message for record in caplog.records) > len(damaged)


def test_update_and_overwrite(corpus, output, tmp_path):
    first = run(simple_recipe(corpus, output)).manifest
    paths = {shard.path for _, _, shard in first.shards()}
    lines = (corpus / "web-3.jsonl").read_text().splitlines()
    (corpus / "web-3.jsonl").write_text("\n".join(lines[10:]) + "\n")
    with pytest.raises(NotUpToDateError, match="have changed"):
        run(simple_recipe(corpus, output))
    updated = run(simple_recipe(corpus, output), update=True).manifest
    local = run(simple_recipe(corpus, tmp_path / "local")).manifest
    assert updated.dataset_hash == local.dataset_hash
    assert paths & {shard.path for _, _, shard in updated.shards()}, "no shard was reused"
    assert_complete(output, updated)
    rebuilt = run(simple_recipe(corpus, output), overwrite=True).manifest
    assert rebuilt.dataset_hash == local.dataset_hash
    assert not {shard.path for _, _, shard in updated.shards()} & {shard.path for _, _, shard in rebuilt.shards()}
    assert_complete(output, rebuilt)


@pytest.mark.full
def test_a_stored_dataset_is_a_source_and_can_be_mixed_exported_and_inspected(corpus, output, tmp_path, capsys):
    small_tokenizers.trained(tmp_path / "tokenizer")
    last = [steps.Tokenize(tokenizer=str(tmp_path / "tokenizer"))]
    results = {}
    for place in (output, str(tmp_path / "local")):
        run(make_recipe(corpus, place, *last))
        again = Recipe(
            sources={"old": steps.Read(read=place)}, steps=[steps.Pack(row_length=32)], output=f"{place}-again"
        )
        gm.mix({"a": (place, 1.0)}, f"{place}-mix", size=20, by="rows")
        gm.export(place, to="jsonl", path=tmp_path / f"exported-{len(results)}/x", backend="serial", progress=False)
        dataset = gm.open_dataset(place)
        results[place] = (
            run(again).manifest.dataset_hash,
            gm.open_dataset(f"{place}-mix").manifest.dataset_hash,
            sorted(path.read_bytes() for path in (tmp_path / f"exported-{len(results)}").iterdir()),
            (dataset.decode(3), dataset.origins(3)),
        )
    stored, local = results.values()
    assert stored == local
    for command in (["inspect", output], ["verify", output]):
        main_result(command)
    assert "rows" in capsys.readouterr().out


def main_result(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code in (0, None)


def test_what_killed_runs_leave_is_found_and_removed(corpus, output, monkeypatch):
    """A run that dies before its manifest has written shards where they would stay."""
    with monkeypatch.context() as patches:
        patches.setattr(publishing, "replace_dataset", lambda *arguments: raise_killed())
        with pytest.raises(KeyboardInterrupt):
            run(simple_recipe(corpus, output))
    left = list_files(output)
    assert any(path.startswith("train/") for path in left)
    foreign = parse_location(output) / "train/web/notes.txt"
    store, key = foreign.open_store()
    store.put(key, b"mine")
    with pytest.raises(UsageError):
        gm.open_dataset(output)
    resumed = run(simple_recipe(corpus, output, min_chars=41))  # nothing of the first run fits any more
    assert not resumed.was_up_to_date
    assert foreign.read_bytes() == b"mine"
    foreign.unlink()
    assert_complete(output, resumed.manifest)
    assert not left & {path for path in list_files(output) if path.startswith("train/") and "shard" in path}


def raise_killed():
    raise KeyboardInterrupt


def test_clean_removes_an_unfinished_run_and_nothing_else(corpus, output, monkeypatch):
    with monkeypatch.context() as patches:
        patches.setattr(publishing, "replace_dataset", lambda *arguments: raise_killed())
        with pytest.raises(KeyboardInterrupt):
            run(simple_recipe(corpus, output))
    foreign = parse_location(output) / "notes.txt"
    store, key = foreign.open_store()
    store.put(key, b"mine")
    removed = clean(parse_location(output))
    assert not removed.is_dataset
    assert removed.files
    assert list_files(output) == {"notes.txt"}


@pytest.mark.full
def test_another_output_inside_this_one_is_not_touched(corpus, output):
    """Both count their epochs from one, so names of the inner dataset look like attempts of the outer one."""
    outer, inner = run(simple_recipe(corpus, output)), run(simple_recipe(corpus, f"{output}/copy"))
    run(simple_recipe(corpus, output), overwrite=True)
    clean(parse_location(output))
    assert gm.open_dataset(f"{output}/copy").verify().problems == []
    assert inner.manifest.dataset_hash == outer.manifest.dataset_hash


@pytest.mark.full
def test_unfinished_uploads_of_others_are_not_aborted(corpus, s3):
    """Killed workers leave parts where shards and intermediate data go; other tools may upload there, too."""
    output = f"{s3.url}/out"
    recipe = simple_recipe(corpus, output)
    run(recipe)
    ours = ["out/train/web/shard-0123-00000001-0123abcd-0.arrow", "out/.gristmill/stored/x-train-0.arrow"]
    theirs = ["out/notes.bin", "out/copy/train/web/shard-0123-00000001-0123abcd-0.arrow", "outside"]
    s3.put("out/copy/manifest.json", b"{}")
    for key in ours + theirs:
        s3.client.create_multipart_upload(Bucket=s3.name, Key=key)
    clean(parse_location(output))
    assert sorted(s3.unfinished_uploads()) == sorted(theirs)


@pytest.mark.full
def test_parts_that_a_killed_mix_has_left_go_with_the_next_one(corpus, s3, tmp_path):
    run(simple_recipe(corpus, tmp_path / "in"))
    s3.put("mix/.gristmill/work/x", b"of a mix that was killed")
    for key in ("mix/.gristmill/work/train/mixed/shard-00000.arrow", "mix/notes"):
        s3.client.create_multipart_upload(Bucket=s3.name, Key=key)
    gm.mix({"a": (str(tmp_path / "in"), 1.0)}, f"{s3.url}/mix", size=20, by="documents")
    assert s3.unfinished_uploads() == ["mix/notes"]


@pytest.mark.full
def test_a_run_succeeds_where_uploads_may_not_be_listed(corpus, s3, seaweed, monkeypatch, caplog):
    recipe = simple_recipe(corpus, f"{s3.url}/out")
    run(recipe)
    proxy = FaultyProxy(seaweed.port)
    proxy.fault = lambda line, number: "denied" if "uploads" in line else None
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    forget_stores()
    run(recipe, overwrite=True)
    proxy.close()
    assert "parts of unfinished uploads may be left" in caplog.text


def test_a_finished_run_is_resumed_from_its_receipts(corpus, output, monkeypatch, tmp_path):
    with monkeypatch.context() as patches:
        patches.setattr(publishing, "replace_dataset", lambda *arguments: raise_killed())
        with pytest.raises(KeyboardInterrupt):
            run(simple_recipe(corpus, output))
    written = {path for path in list_files(output) if path.startswith("train/")}
    resumed = run(simple_recipe(corpus, output)).manifest
    assert {shard.path for _, _, shard in resumed.shards()} == written, "units were run again"
    assert resumed.dataset_hash == run(simple_recipe(corpus, tmp_path / "local")).manifest.dataset_hash
    assert_complete(output, resumed)


@pytest.mark.full
def test_a_stale_worker_of_a_dead_driver_harms_nothing(corpus, output, monkeypatch):
    """It goes on with its task while the next run resumes, publishes, and has ended; clean finds what it left."""
    with monkeypatch.context() as patches:
        patches.setattr(publishing, "replace_dataset", lambda *arguments: raise_killed())
        with pytest.raises(KeyboardInterrupt):
            run(simple_recipe(corpus, output))
    root = parse_location(output)
    [fingerprint, *_] = [path.split("-")[1] for path in sorted(list_files(output)) if path.startswith("train/web/")]

    def finish_task():
        stem = open_stem(root, work_path(fingerprint), "00000001", source="web")
        write_file(root / stem.name_file("train", 0, ".arrow", is_shard=True), b"without its poison record", "00000001")

    finish_task()
    publish = publishing.replace_dataset

    def finish_task_and_publish(*arguments):
        finish_task()
        publish(*arguments)

    monkeypatch.setattr(publishing, "replace_dataset", finish_task_and_publish)
    manifest = run(simple_recipe(corpus, output)).manifest
    assert_complete(output, manifest)
    finish_task()
    assert [problem.kind for problem in gm.open_dataset(output).verify().problems] in ([], ["unexpected"])
    assert len(clean(root).files) == 1
    assert_complete(output, manifest)


@pytest.mark.full
def test_two_runs_on_one_output(corpus, output, monkeypatch):
    publish = publishing.replace_dataset

    def interfere(*arguments):
        with pytest.raises(FolderLockedError, match=str(describe_process().pid)):
            run(simple_recipe(corpus, output))
        publish(*arguments)

    monkeypatch.setattr(publishing, "replace_dataset", interfere)
    assert_complete(output, run(simple_recipe(corpus, output)).manifest)


def test_a_stolen_lease_ends_the_run_and_deletes_nothing(corpus, output, monkeypatch):
    stolen = {}
    publish = publishing.replace_dataset

    def steal(*arguments):
        monkeypatch.setattr(publishing, "replace_dataset", publish)
        stolen["manifest"] = run(simple_recipe(corpus, output, min_chars=50), take_over=True).manifest
        stolen["files"] = list_files(output)
        publish(*arguments)

    monkeypatch.setattr(publishing, "replace_dataset", steal)
    with pytest.raises(LeaseLostError):
        run(simple_recipe(corpus, output))
    assert gm.open_dataset(output).manifest == stolen["manifest"]
    assert {file.path for file in stolen["manifest"].stored_files()} <= list_files(output)
    assert gm.open_dataset(output).verify().problems == [] or all(
        problem.kind == "unexpected" for problem in gm.open_dataset(output).verify().problems
    )


def test_memory_and_processes_contradict_each_other(corpus):
    with pytest.raises(UsageError, match="memory of this process"):
        gm.run(simple_recipe(corpus, "memory://x/out"), backend="processes", progress=False)


@pytest.mark.full
def test_worker_processes_write_to_a_bucket(corpus, s3, tmp_path):
    output = f"{s3.url}/out"
    options = {"backend": "processes", "workers": 2}
    stored = run(make_recipe(corpus, output, slice_bytes=20_000), **options).manifest
    assert stored.dataset_hash == run(make_recipe(corpus, tmp_path / "local")).manifest.dataset_hash
    assert_complete(output, stored)
    assert s3.unfinished_uploads() == []
    secrets = [key.encode() for key in ("gristmill-test-secret", "gristmill-test-key")]
    assert not [name for name in s3.list_keys() for secret in secrets if secret in s3.get(name)]


def test_a_bucket_with_something_else_in_it_is_refused(corpus, s3: Bucket):
    s3.put("out/precious.txt", b"mine")
    with pytest.raises(UsageError, match="not made by gristmill"):
        run(simple_recipe(corpus, f"{s3.url}/out"))
    assert s3.list_keys() == ["out/precious.txt"]


def test_a_damaged_shard_is_found(corpus, s3):
    manifest = run(simple_recipe(corpus, f"{s3.url}/out")).manifest
    _, _, shard = next(iter(manifest.shards()))
    content = bytearray(s3.get(f"out/{shard.path}"))
    content[len(content) // 2] ^= 1
    s3.put(f"out/{shard.path}", bytes(content))
    problems = gm.open_dataset(f"{s3.url}/out").verify().problems
    assert [(problem.path, problem.kind) for problem in problems] == [(shard.path, "checksum")]
    s3.delete(f"out/{shard.path}")
    problems = gm.open_dataset(StorePath(f"{s3.url}/out")).verify().problems
    assert (shard.path, "missing") in [(problem.path, problem.kind) for problem in problems]


@pytest.mark.full
def test_inputs_that_a_manifest_names_are_opened_without_credentials(corpus, s3, tmp_path, capsys):
    s3.put("in/a.jsonl", (corpus / "books.jsonl").read_bytes())
    out = str(tmp_path / "out")
    run(Recipe(sources={"web": steps.Read(read=f"{s3.url}/in/*.jsonl")}, steps=[], output=out))
    options._options.clear()  # as in another process
    with pytest.raises(SystemExit) as ended:
        main(["trace", out, "3"])
    assert ended.value.code == 1
    assert "(without credentials): access is denied" in capsys.readouterr().err
    main_result(["trace", out, "3", "--bucket", s3.url])
    assert "a.jsonl" in capsys.readouterr().out


@pytest.mark.full
def test_the_result_says_how_tasks_read_the_store(corpus, s3, tmp_path, capsys):
    big = json.dumps({"text": "words " * 1000})
    s3.put("in/big.jsonl", "\n".join([big] * 3000).encode())
    recipe = Recipe(sources={"web": steps.Read(read=f"{s3.url}/in/*.jsonl")}, output=f"{s3.url}/out")
    use = run(recipe).store_use
    assert use.read_bytes >= 3000 * len(big)
    assert use.mean_read_bytes > 1 << 20
    assert 0 < use.wait_share <= 1
    assert run(simple_recipe(corpus, tmp_path / "local")).store_use is None
    path = tmp_path / "recipe.yaml"
    path.write_text(f"output: {s3.url}/again\nsources: {{web: {{read: '{s3.url}/in/*.jsonl'}}}}\n")
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(path), "--backend", "serial"])
    assert not stopped.value.code
    assert "tasks waited" in " ".join(capsys.readouterr().out.split())


@pytest.mark.full
@pytest.mark.parametrize("kind", ["near", "lines"])
def test_intermediate_data_is_read_in_large_pieces(s3, tmp_path, capsys, kind):
    """All sizes are a 512th of the real ones or less, so that there are as many units and partitions as at scale."""
    piece_bytes = (1 << 20) >> 9
    rng = random.Random(1)
    texts = ["\n".join(" ".join(rng.choices(WORDS, k=12)) for _ in range(5)) for _ in range(1200)]
    texts += rng.choices(texts, k=100)
    (tmp_path / "in").mkdir()
    for number in range(40):
        lines = [json.dumps({"text": text}) for text in texts[number::40]]
        (tmp_path / f"in/{number:02}.jsonl").write_text("\n".join(lines))
    step = steps.Deduplicate(partition_bytes=16_000, kind=kind)

    def run_into(output, min_piece_bytes):
        chain = [steps.Length(min_chars=1), step]  # right behind `read`, documents would be read again, not stored
        recipe = Recipe(sources={"web": steps.Read(read=f"{tmp_path}/in/*.jsonl")}, steps=chain, output=output)
        layout = UnitLayout(unit_bytes=15_000, min_group_bytes=10_000, min_piece_bytes=min_piece_bytes)
        return run(recipe, layout=layout)

    result = run_into(f"{s3.url}/out", piece_bytes)
    use = result.store_use
    assert use.mean_intermediate_bytes >= piece_bytes
    unmerged = run_into(f"memory://{uuid.uuid4().hex}/out", 0)  # no piece is too small
    assert unmerged.manifest.dataset_hash == result.manifest.dataset_hash
    assert unmerged.store_use.intermediate_reads > 3 * use.intermediate_reads
    print_outcome(result, 1.0)
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"{use.intermediate_reads:,} of them of intermediate data, of {format_bytes(use.mean_intermediate_bytes)};"
        in shown
    )
