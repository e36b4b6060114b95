"""Files that several machines replace: of several replacements of one version exactly one succeeds."""

import errno
import threading
from pathlib import Path

import pytest

from gristmill.core.errors import UsageError
from gristmill.storage.stores.base import ObjectChangedError
from gristmill.storage.stores.posix_store import PosixStore

NUM_WRITERS = 6


def replace_together(folder, version):
    """Replace a file from several threads at once; return who succeeded."""
    winners, start = [], threading.Barrier(NUM_WRITERS)

    def replace(number):
        start.wait()
        try:
            PosixStore(folder).put("manifest.json", f"content {number}".encode(), replaces=version)
        except ObjectChangedError:
            return
        winners.append(number)

    threads = [threading.Thread(target=replace, args=(number,)) for number in range(NUM_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners


def test_exactly_one_of_several_writers_replaces_a_version(tmp_path):
    version = PosixStore(tmp_path).put("manifest.json", b"first", create=True)
    for _ in range(30):
        [winner] = replace_together(tmp_path, version)
        assert (tmp_path / "manifest.json").read_text() == f"content {winner}"
        version = PosixStore(tmp_path).head("manifest.json").version
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize("call", ["replace", "unlink"])
def test_a_writer_that_was_stopped_before_its_rename_does_not_win(tmp_path, monkeypatch, call):
    """The first writer stops right before its rename, or after it; another one replaces the file in the meantime."""
    store = PosixStore(tmp_path)
    version = store.put("manifest.json", b"first", create=True)
    real = {"replace": Path.replace, "unlink": Path.unlink}[call]
    outcomes = []

    def interrupted(path, *arguments, **options):
        monkeypatch.setattr(Path, call, real)
        try:
            outcomes.append(store.put("manifest.json", b"second", replaces=version))
        except ObjectChangedError:
            outcomes.append(None)
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, call, interrupted)
    if call == "replace":
        with pytest.raises(ObjectChangedError):
            store.put("manifest.json", b"stale", replaces=version)
        assert (tmp_path / "manifest.json").read_bytes() == b"second"
        assert outcomes != [None]
    else:
        store.put("manifest.json", b"stale", replaces=version)
        assert outcomes == [None]
        assert (tmp_path / "manifest.json").read_bytes() == b"stale"


def test_another_version_is_not_replaced(tmp_path):
    store = PosixStore(tmp_path)
    old = store.put("manifest.json", b"first", create=True)
    store.put("manifest.json", b"second", replaces=old)
    with pytest.raises(ObjectChangedError):
        store.put("manifest.json", b"third", replaces=old)
    assert (tmp_path / "manifest.json").read_bytes() == b"second"


def test_a_file_system_without_hard_links_is_refused(tmp_path, monkeypatch):
    """As those that show a bucket as a folder."""

    def refuse(path, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(UsageError, match="no hard links"):
        PosixStore(tmp_path).put("lease", b"1", create=True)
    assert list(tmp_path.iterdir()) == []
