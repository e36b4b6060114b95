import os

import pytest

from gristmill.core.errors import GristmillError
from gristmill.pipeline.demo import CountAndDieOnce, file_system_account, run_demo, source_files
from gristmill.text.counts import Counts


@pytest.fixture
def library(tmp_path):
    """Three packages of known size, and one installed package that does not count."""
    folder = tmp_path / "lib"
    for number in range(40):
        path = folder / f"package{number % 2}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("two words\n" * number)
    (folder / "alone.py").write_text("one\n")
    (folder / "notes.txt").write_text("not Python\n")
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "installed.py").write_text("not ours\n")
    return folder


@pytest.mark.parametrize("workers", [1, 2])
def test_counts_are_complete_although_a_worker_is_killed(library, workers):
    demo = run_demo(library, workers=workers, progress=False)
    assert demo.killed_pid != os.getpid()
    assert demo.total == Counts(files=41, lines=781, words=1561, bytes=7804)
    assert list(demo.packages) == ["package1", "package0", "alone"]
    assert demo.packages["package1"] == Counts(files=20, lines=400, words=800, bytes=4000)


def test_source_files_and_file_system_account_agree(library):
    paths = source_files(library)
    assert len(paths) == 41
    assert file_system_account(library) == (41, sum(path.stat().st_size for path in paths))


def test_loss_is_an_error(library, monkeypatch):
    monkeypatch.setattr("gristmill.pipeline.demo.file_system_account", lambda folder: (42, 7804))
    with pytest.raises(GristmillError, match="do not balance"):
        run_demo(library, workers=1, progress=False)


def test_folder_without_sources_is_an_error(tmp_path):
    with pytest.raises(GristmillError, match="no Python source files"):
        run_demo(tmp_path)


def test_the_calling_process_never_kills_itself(library, tmp_path):
    victim = library / "alone.py"
    count = CountAndDieOnce(victim=victim, marker=tmp_path / "killed", parent_pid=os.getpid())
    assert count(victim) == Counts(files=1, lines=1, words=1, bytes=4)
