"""What plans remember: only under the same key, and only what this user's own processes have written whole."""

import errno
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from gristmill.storage import remembered_proofs
from gristmill.storage.remembered_proofs import choose_plan_cache, find_plan_cache, recall, remember, use_plan_cache


class Answer(msgspec.Struct):
    number: int
    words: list[str]


KEY = {"content": "5b1d", "flags": [True, None]}
ANSWER = Answer(7, ["a", "é"])


@pytest.fixture
def used(plan_cache):
    with use_plan_cache():
        yield plan_cache


@pytest.fixture
def file(used):
    remember("proof", KEY, ANSWER)
    [path] = used.iterdir()
    return path


def test_an_answer_is_recalled_under_its_key(used):
    assert recall("proof", KEY, Answer) is None
    remember("proof", KEY, ANSWER)
    assert recall("proof", KEY, Answer) == ANSWER
    assert recall("proof", {**KEY, "content": "5b1e"}, Answer) is None
    assert recall("facts", KEY, Answer) is None


def test_the_folder_is_the_users_own(file):
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert msgspec.json.decode(file.read_bytes())["answer"] == {"number": 7, "words": ["a", "é"]}


def test_nothing_is_used_outside_a_plan(plan_cache):
    remember("proof", KEY, ANSWER)
    assert not plan_cache.exists()
    with use_plan_cache():
        remember("proof", KEY, ANSWER)
    assert recall("proof", KEY, Answer) is None


def test_it_can_be_turned_off(file):
    choose_plan_cache(None)
    assert recall("proof", KEY, Answer) is None
    remember("proof", "other", ANSWER)
    assert list(file.parent.iterdir()) == [file]


def test_every_truncation_and_every_changed_byte_is_noticed(file):
    content = file.read_bytes()
    for size in range(len(content)):
        file.write_bytes(content[:size])
        assert recall("proof", KEY, Answer) is None
    for index in range(len(content)):
        file.write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
        assert recall("proof", KEY, Answer) is None, content[index:]
    remember("proof", KEY, ANSWER)
    assert file.read_bytes() == content
    assert recall("proof", KEY, Answer) == ANSWER


def test_a_file_of_another_key_is_not_used(file):
    remember("proof", "other", Answer(8, []))
    [other] = set(file.parent.iterdir()) - {file}
    other.replace(file)
    assert recall("proof", KEY, Answer) is None


def test_an_answer_of_another_type_is_not_used(file):
    assert recall("proof", KEY, int) is None


def test_a_link_is_not_followed(file, tmp_path):
    file.replace(tmp_path / "elsewhere.json")
    file.symlink_to(tmp_path / "elsewhere.json")
    assert recall("proof", KEY, Answer) is None


def test_a_pipe_is_not_waited_for(file):
    file.unlink()
    os.mkfifo(file)
    assert recall("proof", KEY, Answer) is None
    remember("proof", KEY, ANSWER)  # which replaces it
    assert recall("proof", KEY, Answer) == ANSWER


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"checksum":"","answer":1,"key":' + b"[" * 100_000, b"\xff", b"null"]
)
def test_any_other_content_is_ignored(file, content):
    file.write_bytes(content)
    assert recall("proof", KEY, Answer) is None


def test_a_file_or_folder_of_another_user_is_not_used(file, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    assert recall("proof", KEY, Answer) is None
    remember("proof", "other", ANSWER)
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_is_not_used(file, mode):
    file.parent.chmod(mode)
    assert recall("proof", KEY, Answer) is None
    remember("proof", "other", ANSWER)
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    choose_plan_cache(str(tmp_path / "file" / "plans"))
    try:
        with use_plan_cache():
            remember("proof", KEY, ANSWER)
            assert recall("proof", KEY, Answer) is None
    finally:
        choose_plan_cache(None)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_is_full_or_read_only_is_no_error(used, monkeypatch, code):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    remember("proof", "other", ANSWER)
    monkeypatch.setattr(os, "write" if code == errno.ENOSPC else "rename", fail)
    monkeypatch.setattr(os, "replace", fail)
    remember("proof", KEY, ANSWER)
    assert recall("proof", KEY, Answer) is None
    assert recall("proof", "other", Answer) == ANSWER
    assert len(list(used.iterdir())) == 1, "nothing is left of what could not be written"


def change_version(library):
    find = remembered_proofs._find_version
    return lambda name: "99" if name == library else find(name)


@pytest.mark.parametrize(
    ("module", "name", "changed"),
    [
        ("sys", "version", "3.99"),
        ("platform", "machine", lambda: "riscv64"),
        *(
            pytest.param(remembered_proofs.__name__, "_find_version", change_version(one), id=one)
            for one in remembered_proofs._LIBRARIES
        ),
    ],
)
def test_a_change_of_code_library_or_machine_changes_the_key(file, monkeypatch, module, name, changed):
    monkeypatch.setattr(sys.modules[module] if module in sys.modules else __import__(module), name, changed)
    remembered_proofs._describe_installation.cache_clear()
    try:
        assert recall("proof", KEY, Answer) is None
    finally:
        monkeypatch.undo()
        remembered_proofs._describe_installation.cache_clear()
    assert recall("proof", KEY, Answer) == ANSWER


def test_the_code_of_the_package_counts_with_sizes_and_times(used, tmp_path, monkeypatch):
    copy = tmp_path / "gristmill" / "storage"
    copy.mkdir(parents=True)
    source = tmp_path / "gristmill" / "step.py"
    source.write_text("a = 1")
    monkeypatch.setattr(remembered_proofs, "__file__", str(copy / "remembered_proofs.py"))
    describe = remembered_proofs._describe_installation.__wrapped__
    before = describe()
    assert describe() == before
    os.utime(source, ns=(1, 1))
    assert describe() != before


WRITER = """
import sys
from gristmill.storage.remembered_proofs import choose_plan_cache, recall, remember, use_plan_cache
choose_plan_cache(sys.argv[1])
with use_plan_cache():
    for _ in range(100):
        remember("proof", "shared", ["answer"] * 1000)
        assert recall("proof", "shared", list[str]) in (None, ["answer"] * 1000)
"""


def test_processes_write_at_the_same_time(used):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(used)]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert recall("proof", "shared", list[str]) == ["answer"] * 1000
    assert len(list(used.iterdir())) == 1


def test_threads_write_at_the_same_time(used):
    def ask(number):
        with use_plan_cache():
            remember("proof", KEY, ANSWER)
            return recall("proof", KEY, Answer)

    with ThreadPoolExecutor(8) as pool:
        assert all(answer == ANSWER for answer in pool.map(ask, range(64)))
    assert len(list(used.iterdir())) == 1


def test_the_default_is_below_the_home_folder(tmp_path):
    script = "from gristmill.storage.remembered_proofs import find_plan_cache; print(find_plan_cache())"
    output = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True
    ).stdout
    caches = "Library/Caches" if sys.platform == "darwin" else ".cache"
    assert output.strip() == str(tmp_path / caches / "gristmill" / "plans")
    assert find_plan_cache() is None  # tests have none unless they ask for one
