import os
import subprocess
import sys

import fsspec
import pytest

from gristmill.core.errors import UsageError
from gristmill.storage.paths import ListedFile, find_files, list_files


@pytest.fixture
def tree(tmp_path):
    for name in (
        "a.jsonl",
        "b.jsonl",
        "c.txt",
        "deep/d.jsonl",
        "deep/er/e.jsonl",
        ".hidden/h.jsonl",
        "_tmp/t.jsonl",
        "_SUCCESS",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def relatives(patterns, **options):
    return [file.relative for file in find_files(patterns, **options)]


def test_a_folder_stands_for_all_its_files_but_hidden_ones(tree):
    expected = ["a.jsonl", "b.jsonl", "c.txt", "deep/d.jsonl", "deep/er/e.jsonl"]
    assert relatives(str(tree)) == relatives(f"{tree}/") == relatives(f"file://{tree}") == expected


def test_size_version_and_path_are_those_of_the_file(tree):
    file = tree / "a.jsonl"
    assert find_files(str(file)) == [ListedFile(str(file), "a.jsonl", 7, str(file.stat().st_mtime_ns))]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("**/*.jsonl", ["_tmp/t.jsonl", "a.jsonl", "b.jsonl", "deep/d.jsonl", "deep/er/e.jsonl"]),
        ("deep/**", ["d.jsonl", "er/e.jsonl"]),
        ("?.txt", ["c.txt"]),
        ("[ab].jsonl", ["a.jsonl", "b.jsonl"]),
        ("{b,a}.jsonl", ["a.jsonl", "b.jsonl"]),
        ("*.{jsonl,txt,md}", ["a.jsonl", "b.jsonl", "c.txt"]),
        ("{deep,a.jsonl}", ["a.jsonl", "deep/d.jsonl", "deep/er/e.jsonl"]),
        (".hidden/*", ["h.jsonl"]),
        ("*/d.jsonl", ["deep/d.jsonl"]),
    ],
)
def test_patterns(tree, pattern, expected):
    assert relatives(f"{tree}/{pattern}") == expected
    assert relatives(pattern, base=str(tree)) == expected


def test_relative_patterns_start_from_the_current_folder(tree, monkeypatch):
    monkeypatch.chdir(tree / "deep")
    assert [file.path for file in find_files("../*.txt")] == [str(tree / "c.txt")]
    assert relatives("*.jsonl") == ["d.jsonl"]
    assert [file.path for file in find_files("d.jsonl")] == [str(tree / "deep/d.jsonl")]


def test_several_patterns_share_a_root_and_no_file_comes_twice(tree):
    patterns = [f"{tree}/deep/*.jsonl", f"{tree}/*.jsonl", f"{tree}/a.jsonl", f"{tree}/deep/../deep/er"]
    assert relatives(patterns) == ["a.jsonl", "b.jsonl", "deep/d.jsonl", "deep/er/e.jsonl"]


def test_the_common_root_is_a_folder_not_a_prefix_of_names(tmp_path):
    for name in ("part-1/x", "part-2/x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    assert relatives([f"{tmp_path}/part-1/*", f"{tmp_path}/part-2/*"]) == ["part-1/x", "part-2/x"]


def test_a_name_with_special_characters_is_found_as_it_is(tmp_path):
    for name in ("[1].txt", "{a,b}.txt", "1.txt"):
        (tmp_path / name).write_text(name)
    assert relatives(f"{tmp_path}/[1].txt") == ["[1].txt"]
    assert relatives(f"{tmp_path}/{{a,b}}.txt") == ["{a,b}.txt"]


def test_a_range_must_be_complete(tmp_path):
    for number in range(12):
        if number not in (3, 7):
            (tmp_path / f"part-{number:04d}-x.txt").write_text("")
    assert len(find_files(f"{tmp_path}/part-{{0008..0011}}-x.txt")) == 4
    for pattern in ("part-{0000..0011}-x.txt", "part-{0000..0011}-*.txt"):
        with pytest.raises(UsageError) as caught:
            find_files(f"{tmp_path}/{pattern}")
        assert "part-0003" in str(caught.value)
        assert len(caught.value.context["missing"]) == 2


@pytest.mark.parametrize(
    "pattern", ["none-*.txt", "nowhere/*.txt", "nothing.txt", "empty", "{x,y}.txt", "{0..3}.txt", "c.txt/*"]
)
def test_nothing_found_says_what_was_looked_for_and_where(tree, pattern):
    (tree / "empty").mkdir()
    with pytest.raises(UsageError) as caught:
        find_files(pattern, base=str(tree))
    assert pattern in str(caught.value)
    assert str(tree) in str(caught.value)


def test_one_of_several_patterns_without_a_match_is_an_error(tree):
    with pytest.raises(UsageError, match="md"):
        find_files([f"{tree}/*.jsonl", f"{tree}/*.md"])


def test_folders_that_match_where_files_are_wanted_are_mentioned(tree):
    with pytest.raises(UsageError) as caught:
        find_files(f"{tree}/dee*")
    assert str(tree / "deep") in str(caught.value.help)


@pytest.mark.parametrize("patterns", ["", [], [""]])
def test_no_pattern_at_all_is_refused(patterns):
    with pytest.raises(UsageError):
        find_files(patterns)


def test_different_stores_in_one_source_are_refused(tree):
    with pytest.raises(UsageError, match="stores"):
        find_files([str(tree), "memory://nowhere/*"])


def test_links_inside_the_root_give_each_file_once(tree):
    (tree / "0-again.jsonl").symlink_to(tree / "a.jsonl")
    (tree / "0-deep").symlink_to(tree / "deep")
    (tree / "deep" / "beside").symlink_to("../deep2")
    (tree / "deep2").mkdir()
    (tree / "deep2" / "beside").symlink_to("../deep")
    assert relatives(str(tree)) == ["a.jsonl", "b.jsonl", "c.txt", "deep/d.jsonl", "deep/er/e.jsonl"]
    assert list_files(str(tree)).duplicate_links == [f"{tree}/0-again.jsonl"]
    assert relatives(f"{tree}/0-d*/*.jsonl") == ["0-deep/d.jsonl"]


@pytest.mark.parametrize("target", ["", "deep", "deep/er"])
def test_links_in_a_circle_are_refused(tree, target):
    (tree / "deep" / "er" / "up").symlink_to(tree / target)
    for pattern in (str(tree), f"{tree}/**/*.jsonl"):
        with pytest.raises(UsageError, match="up"):
            find_files(pattern)
    assert "a.jsonl" in relatives(f"{tree}/*.jsonl")


def test_links_to_files_anywhere_are_followed(tree, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "blob").write_text("x" * 999)
    (tree / "file.jsonl").symlink_to(outside / "blob")
    (tree / "deep" / "again.jsonl").symlink_to(outside / "blob")
    for pattern in (f"{tree}/**/*.jsonl", str(tree)):
        listing = list_files(pattern)
        [file] = [file for file in listing.files if file.num_bytes == 999]
        assert file.path == f"{tree}/deep/again.jsonl"  # the first of its names
        assert listing.duplicate_links == [f"{tree}/file.jsonl"]
        assert listing.link_targets == [str(outside / "blob")]
    assert relatives(f"{tree}/fi*.jsonl") == ["file.jsonl"]


def test_links_to_folders_elsewhere_are_not_followed_but_told(tree, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.jsonl").write_text("secret")
    (tree / "folder").symlink_to(outside)
    for pattern in (f"{tree}/**/*.jsonl", f"{tree}/*/*.jsonl", str(tree)):
        listing = list_files(pattern)
        assert not any("secret" in file.relative for file in listing.files)
        assert listing.links_outside == [f"{tree}/folder"]
    with pytest.raises(UsageError) as caught:
        find_files(f"{tree}/fol*/*.jsonl")
    assert str(tree / "folder") in str(caught.value.help)
    # What is named outright is meant.
    assert relatives(f"{tree}/folder") == ["secret.jsonl"]


def test_a_sibling_whose_name_starts_like_the_root_is_outside(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data-private").mkdir()
    (tmp_path / "data-private" / "x").write_text("")
    (tmp_path / "data" / "y").write_text("")
    (tmp_path / "data" / "x").symlink_to(tmp_path / "data-private")
    assert relatives(f"{tmp_path}/data") == ["y"]


def test_a_link_that_leads_nowhere_is_an_error(tree):
    (tree / "broken.jsonl").symlink_to("gone.jsonl")
    with pytest.raises(UsageError, match=r"broken\.jsonl"):
        find_files(str(tree))


def test_a_pipe_is_refused(tree):
    os.mkfifo(tree / "pipe.jsonl")
    for pattern in (str(tree), f"{tree}/*.jsonl", f"{tree}/pipe.jsonl"):
        with pytest.raises(UsageError, match=r"pipe\.jsonl"):
            find_files(pattern)


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    try:
        (tmp_path / os.fsdecode(b"\xff.txt")).write_text("")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    with pytest.raises(UsageError, match="UTF-8"):
        find_files(str(tmp_path))


def test_a_folder_without_permission_is_an_error(tree):
    """In a process without root's rights, if this one has them."""
    locked = tree / "deep" / "locked"
    locked.mkdir()
    for folder in (tree, *tree.parents):
        if folder.stat().st_uid == os.getuid() and folder != folder.parent and folder.name != "tmp":
            folder.chmod(0o755)
    locked.chmod(0)
    script = (
        "import os, sys\n"
        "from gristmill.storage.paths import find_files\n"
        "if os.getuid() == 0: os.setgid(65534), os.setuid(65534)\n"
        "try: find_files(sys.argv[1])\n"
        "except ValueError as error: print(type(error).__name__, error)\n"
        "else: print('found')\n"
    )
    try:
        shown = subprocess.run([sys.executable, "-c", script, str(tree)], capture_output=True, text=True, check=True)
    finally:
        locked.chmod(0o755)
    assert shown.stdout.startswith("UsageError")
    assert str(locked) in shown.stdout


class TestMemoryStore:
    @pytest.fixture
    def store(self):
        fs = fsspec.filesystem("memory")
        for name in ("a.jsonl", "b.jsonl", "deep/c.jsonl", "_tmp/d.jsonl", ".e.jsonl"):
            fs.pipe(f"/data/{name}", name.encode())
        yield "memory://data"
        fs.rm("/data", recursive=True)

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("", ["a.jsonl", "b.jsonl", "deep/c.jsonl"]),
            ("/*.jsonl", ["a.jsonl", "b.jsonl"]),
            ("/**/*.jsonl", ["_tmp/d.jsonl", "a.jsonl", "b.jsonl", "deep/c.jsonl"]),
            ("/{a,b}.jsonl", ["a.jsonl", "b.jsonl"]),
            ("/a.jsonl", ["a.jsonl"]),
            ("/*/c.jsonl", ["deep/c.jsonl"]),
        ],
    )
    def test_patterns(self, store, pattern, expected):
        assert relatives(store + pattern) == expected

    def test_several_patterns_share_a_root(self, store):
        assert relatives([f"{store}/a.jsonl", f"{store}/deep/*"]) == ["a.jsonl", "deep/c.jsonl"]

    @pytest.mark.parametrize("pattern", ["/x*.jsonl", "/x.jsonl", "/x/*", "/{a,x}.jsonl", "/{0..2}.jsonl"])
    def test_nothing_found(self, store, pattern):
        with pytest.raises(UsageError):
            find_files(store + pattern)


def test_an_unknown_protocol_is_wrong_use():
    with pytest.raises(UsageError):
        find_files("nosuch://bucket/key")


def test_a_web_server_cannot_be_searched():
    with pytest.raises(UsageError, match="braces"):
        find_files("https://example.invalid/part-*.jsonl")
