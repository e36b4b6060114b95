"""Outputs on file systems that several machines share: a run that was replaced may go on, and harms nobody."""

import json

import msgspec
import psutil
import pytest

import gristmill as gm
from gristmill import Recipe, steps
from gristmill.core.errors import LeaseLostError
from gristmill.pipeline import execution
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.publishing import journal
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages import receipts
from gristmill.pipeline.stages import receipts as uploaded_receipts
from gristmill.pipeline.stages.receipts import open_receipts
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.pipeline.work_folder import JOURNAL, RECEIPTS, work_path
from gristmill.storage import folders


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        lines = [json.dumps({"text": f"text {n} of {number} " * (n % 30 + 1)}) for n in range(60)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture
def output(tmp_path, monkeypatch):
    """A folder on a disk that is said to be shared."""
    folder = tmp_path / "shared"
    monkeypatch.setattr(folders, "is_shared_file_system", lambda path: path == folder)
    return folder


def run(corpus, output, min_chars=40, backend="serial", **options):
    read = steps.Read(read=f"{corpus}/*.jsonl")
    recipe = Recipe(sources={"web": read}, steps=[steps.Length(min_chars=min_chars)], output=str(output))
    options["layout"] = UnitLayout(unit_bytes=20_000, min_group_bytes=10_000)
    return run_recipe(recipe, RunOptions(backend=backend, progress=False, **options)).manifest


def assert_complete(output, manifest):
    """The dataset is what its manifest says, and nothing is left of another run."""
    assert gm.open_dataset(output).manifest == manifest
    assert gm.open_dataset(output).verify().problems == []
    named = {file.path for file in manifest.stored_files()}
    files = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    assert {path for path in files if path.endswith(".arrow")} <= named
    assert not [path for path in files if path.startswith((".gristmill/work", ".gristmill/receipts"))]


def test_the_same_dataset_as_on_a_local_disk(corpus, output, tmp_path):
    local, shared = run(corpus, tmp_path / "local"), run(corpus, output)
    assert shared.dataset_hash == local.dataset_hash
    assert_complete(output, shared)
    rebuilt = run(corpus, output, 41, update=True)
    assert rebuilt.dataset_hash == run(corpus, tmp_path / "local-41", 41).dataset_hash
    assert_complete(output, rebuilt)


class Done(msgspec.Struct):
    """A result."""

    number: int


def test_receipts_of_a_run_that_was_replaced_are_never_mixed_with_others(output):
    """In one file, the receipts of each would be looked for where those of the other are."""
    path = output / RECEIPTS
    first, second = (open_receipts(path, f"{epoch:08d}", lambda: None) for epoch in (1, 2))
    for number in range(4):
        first.add(f"first-{number}", Done(number))
        second.add(f"second-{number}", Done(10 + number))
        first.sync()
        second.sync()
    assert [first.get(f"first-{number}", Done) for number in range(4)] == [Done(number) for number in range(4)]
    assert [second.get(f"second-{number}", Done).number for number in range(4)] == [10, 11, 12, 13]
    first.close()
    second.close()
    third = open_receipts(path, "00000003", lambda: None)
    assert sorted(done.number for done in third.read_results(Done)) == [0, 1, 2, 3, 10, 11, 12, 13]
    third.close()


def test_a_run_that_was_replaced_ends_with_its_next_receipts(corpus, output, monkeypatch):
    monkeypatch.setattr(uploaded_receipts, "_SEGMENT_SECONDS", 0.0)
    add, added, thief = receipts.Receipts.add, [], []
    late = output / work_path("a-00000001-0a1b2c3d-train-0.arrow")

    def steal(self, fingerprint, result):
        if not thief:
            thief.append(None)
            thief[0] = run(corpus, output, 80, take_over=True)
            late.parent.mkdir(exist_ok=True)
            late.write_bytes(b"of a task that has ended after the other run")
            added.clear()
        added.append(fingerprint)
        add(self, fingerprint, result)

    monkeypatch.setattr(receipts.Receipts, "add", steal)
    with pytest.raises(LeaseLostError):
        run(corpus, output)
    assert len(added) == 1, "it went on to its end in vain"
    assert_complete(output, thief[0])


def test_workers_have_ended_before_what_they_made_is_removed(corpus, output, monkeypatch):
    """Else one of them could still make a file in its last system call."""
    before, left = set(psutil.Process().children()), []

    def fail(*_):
        raise ValueError("no receipt")

    def look(_, run_id):
        if run_id is not None:
            left.append(set(psutil.Process().children()) - before)

    monkeypatch.setattr(receipts.Receipts, "add", fail)
    monkeypatch.setattr(execution, "remove_temporaries", look)
    with pytest.raises(ValueError, match="no receipt"):
        run(corpus, output, backend="processes", workers=2)
    assert left == [set()]


@pytest.mark.parametrize("has_files", [True, False])
def test_a_run_that_was_replaced_while_it_published(corpus, output, monkeypatch, has_files):
    """Its journal is written, and its moves are made if the other one has left the files. The dataset stays."""
    derive, thief = journal.make_derived_files, []

    def steal(manifest):
        monkeypatch.setattr(journal, "make_derived_files", derive)
        with monkeypatch.context() as patches:
            if has_files:
                patches.setattr(journal, "prune_work_folder", lambda *_: None)
            thief.append(run(corpus, output, 80, take_over=True))
        return derive(manifest)

    monkeypatch.setattr(journal, "make_derived_files", steal)
    with pytest.raises(LeaseLostError):
        run(corpus, output)
    assert gm.open_dataset(output).manifest == thief[0]
    assert all(problem.kind == "unexpected" for problem in gm.open_dataset(output).verify().problems)
    assert (output / JOURNAL).exists() == has_files
    assert_complete(output, run(corpus, output, 90, update=True))
