"""Whatever was changed after the run is found, and the file is named."""

import json
import os
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from gristmill.core.books import Account
from gristmill.core.errors import DamagedDatasetError
from gristmill.shards.dataset import open_dataset
from gristmill.shards.derived_files import make_derived_files
from gristmill.shards.manifest_file import dump_manifest, load_manifest
from gristmill.shards.verify import verify


def test_a_whole_dataset(dataset, records):
    result = verify(dataset)
    assert result, result.problems
    assert (result.num_shards, result.num_rows) == (4, len(records))
    assert open_dataset(dataset).verify()


def _files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def _flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied", "longer", "missing"])
def test_damage_to_any_file_names_it_and_no_other(dataset, damage):
    for name in _files(dataset):
        if name == "manifest.json" or (name, damage) == ("README.md", "longer"):  # people write into the card
            continue
        path = dataset / name
        data = path.read_bytes()
        if damage == "flipped":
            _flip(path, len(data) // 2)
        elif damage == "missing":
            path.unlink()
        else:
            path.write_bytes({"truncated": data[:-1], "emptied": b"", "longer": data + data[-1:]}[damage])
        result = verify(dataset)
        assert [problem.path for problem in result.problems] == [name]
        path.write_bytes(data)
    assert verify(dataset)


def test_every_single_flipped_bit_of_a_shard(make_dataset, write):
    folder = make_dataset(write)
    shard = load_manifest(folder).splits["validation"]["web"][0].path
    size = (folder / shard).stat().st_size
    for position in range(0, size, max(1, size // 50)):
        _flip(folder / shard, position)
        assert [problem.path for problem in verify(folder).problems] == [shard]
        _flip(folder / shard, position)


def test_a_shard_beside_the_known_ones(dataset):
    shard = dataset / load_manifest(dataset).splits["train"]["web"][0].path
    extra = shard.with_name(shard.name.replace("00000", "00009"))
    extra.write_bytes(shard.read_bytes())
    problems = verify(dataset).problems
    assert [problem.path for problem in problems] == [extra.relative_to(dataset).as_posix()]


def test_what_datasets_keeps_beside_the_shards_is_no_problem(dataset):
    shard = dataset / load_manifest(dataset).splits["train"]["web"][0].path
    shard.with_name("cache-1234.arrow").write_bytes(b"")
    assert verify(dataset)


def _reseal(folder, change):
    """Edit the manifest as one would who knows about its checksums, so that only the data can tell."""
    plain = json.loads((folder / "manifest.json").read_bytes())
    change(plain)
    manifest = msgspec.convert(plain, type(load_manifest(folder))).seal()
    (folder / "manifest.json").write_bytes(b"".join(dump_manifest(manifest)))
    for path in folder.glob("*/state.json"):
        state = json.loads(path.read_bytes())
        state["_fingerprint"] = f"{manifest.dataset_hash[:16]}-{path.parent.name}"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
    with suppress(DamagedDatasetError):  # of books that cannot be read
        (folder / "report.json").write_bytes(make_derived_files(manifest)["report.json"])


def test_more_or_fewer_rows_than_the_manifest_says(dataset):
    def change(plain):
        plain["splits"]["train"]["web"][0]["rows"] += 1
        plain["splits"]["train"]["web"][1]["rows"] -= 1

    _reseal(dataset, change)
    found = {problem.path for problem in verify(dataset).problems}
    shards = load_manifest(dataset).splits["train"]["web"]
    assert {shard.path for shard in shards} <= found
    assert {problem.kind for problem in verify(dataset).problems} == {"rows"}


def test_an_edited_manifest(dataset):
    path = dataset / "manifest.json"
    original = path.read_bytes()
    plain = json.loads(original)
    plain["books"]["web"][0]["in"] += 1
    edits = [
        original.replace(b'"kind": "documents"', b'"kind": "chats"'),
        original.replace(b"/data/web.jsonl", b"/data/wib.jsonl"),
        original.replace(b'"output": "out"', b'"output": "two"'),
        json.dumps(plain).encode(),
    ]
    for edited in edits:
        assert edited != original
        path.write_bytes(edited)
        assert ("manifest.json", "edited") in [(problem.path, problem.kind) for problem in verify(dataset).problems]


def test_books_that_do_not_balance_or_do_not_end_with_the_records(dataset):
    original = (dataset / "manifest.json").read_bytes()
    first = msgspec.to_builtins(Account("read", records_in=10, records_out=9))
    edits = [
        lambda plain: plain["books"]["web"][0].update({"in": 99}),
        lambda plain: plain["books"]["web"].insert(0, first),
        lambda plain: plain["books"]["books"][0].update({"in": 6, "out": 6}),
        lambda plain: plain["books"].pop("books"),
        lambda plain: plain["books"]["web"][0].pop("out"),
        lambda plain: plain["quarantine"].update(counts={"books": {"invalid_json": 1}}),
    ]
    for edit in edits:
        _reseal(dataset, edit)
        assert "books" in {problem.kind for problem in verify(dataset).problems}
        (dataset / "manifest.json").write_bytes(original)


def test_quarantine_that_was_counted_but_is_not_there(dataset):
    def change(plain):
        plain["quarantine"]["counts"]["web"]["invalid_json"] += 1
        plain["books"]["web"][0]["quarantined"]["invalid_json"] += 1
        plain["books"]["web"][0]["in"] += 1

    _reseal(dataset, change)
    assert [problem.path for problem in verify(dataset).problems] == ["quarantine/web.jsonl"]


def test_origins_of_an_unknown_file(dataset):
    _reseal(dataset, lambda plain: plain["files"].popitem())
    manifest = load_manifest(dataset)
    problems = verify(dataset).problems
    assert {problem.kind for problem in problems} == {"origins"}
    shard = manifest.splits["train"]["books"][0]
    assert [problem.path for problem in problems] == [(shard.origins or shard).path]


def test_keys_that_a_manifest_does_not_have_are_damage(dataset):
    path = dataset / "manifest.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"{", b'{"more": 1,', 1))
    with pytest.raises(DamagedDatasetError, match="more"):
        verify(dataset)
    path.write_bytes(content.replace(b'"format"', b'"format": "jsonl", "format"', 1))
    assert [problem.kind for problem in verify(dataset).problems] == ["edited"]


@pytest.mark.parametrize("name", ["manifest.json", "report.json"])
@pytest.mark.parametrize("kind", ["pipe", "not UTF-8"])
def test_what_is_no_readable_file_is_told(dataset, name, kind):
    path = dataset / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b'{"format_version": 3, "a": "\xff"}')
    if name == "manifest.json":
        with pytest.raises(DamagedDatasetError, match=r"manifest\.json"):
            verify(dataset)
    else:
        assert {problem.path for problem in verify(dataset).problems} == {name}


def test_damaged_signatures_are_told(dataset):
    (dataset / "signatures").mkdir()
    (dataset / "signatures/index.json").write_bytes(b"\xff")
    assert [problem.path for problem in verify(dataset).problems] == ["signatures/index.json"]
