import fnmatch
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.storage.patterns import PathPattern, expand_braces, find_fixed_folder


@pytest.mark.parametrize(
    "pattern",
    [
        "a{b,c}d",
        "{a,b}{c,d}",
        "x{08..12}y",
        "{1..3}",
        "{3..1}",
        "{000..2}",
        "{a,{b,c}d}e",
        "{a,b,}z",
        "{x}",
        "no braces",
        "a{b",
        "a}b",
        "{99..101}",
    ],
)
def test_braces_mean_what_they_mean_in_bash(pattern):
    quoted = pattern.replace(" ", "\\ ")
    shell = subprocess.run(["bash", "-c", f"printf '%s\\n' {quoted}"], capture_output=True, text=True, check=True)
    assert expand_braces(pattern) == shell.stdout.splitlines()


def test_a_range_of_a_billion_names_is_refused_at_once():
    for pattern in ("{0..999999999}", "{0..9999}{0..9999}"):
        with pytest.raises(UsageError, match="expands to more"):
            expand_braces(pattern)


@pytest.mark.parametrize(
    ("pattern", "folder"), [("/a/b/*.txt", "/a/b/"), ("a/b", "a/"), ("{a,b}/c", ""), ("x/[ab]/c", "x/"), ("x/y?", "x/")]
)
def test_the_fixed_folder_ends_before_the_first_special_character(pattern, folder):
    assert find_fixed_folder(pattern) == folder


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.txt", "a.txt", True),
        ("*.txt", "b/a.txt", False),
        ("*.txt", ".a.txt", False),
        (".*.txt", ".a.txt", True),
        ("**/*.txt", "a.txt", True),
        ("**/*.txt", "b/c/d/a.txt", True),
        ("**/*.txt", ".b/a.txt", False),
        ("**", "b/c/a.txt", True),
        ("**", "b/.c", False),
        ("b/**/c/**/*.txt", "b/c/a.txt", True),
        ("b/**/c/**/*.txt", "b/x/c/y/z/a.txt", True),
        ("b/**/c/**/*.txt", "b/x/a.txt", False),
        ("[!a]?.txt", "bc.txt", True),
        ("[!a]?.txt", "ac.txt", False),
    ],
)
def test_wildcards(pattern, path, expected):
    assert PathPattern.below(pattern).matches(path.split("/")) is expected


def test_a_folder_leaves_out_hidden_and_private_names():
    everything = PathPattern.everything()
    assert everything.matches(["a", "b.txt"])
    for path in (".a", "_SUCCESS", "_logs/a.txt", "a/.git/b", "a/_b"):
        assert not everything.matches(path.split("/"))


@given(
    st.text("ab*?", min_size=1, max_size=6).filter(lambda text: "**" not in text), st.text("ab", min_size=1, max_size=6)
)
def test_one_component_matches_as_fnmatch_does(pattern, name):
    assert PathPattern.below(pattern).matches([name]) is fnmatch.fnmatchcase(name, pattern)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["range", "list"])
def test_a_million_names_take_seconds(kind):
    numbers = (f"{number:07d}" for number in range(1_000_000))
    inside = "0000000..0999999" if kind == "range" else ",".join(numbers)
    names = expand_braces("part-{" + inside + "}.jsonl")
    assert (len(names), names[17], names[-1]) == (1_000_000, "part-0000017.jsonl", "part-0999999.jsonl")
