import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.recipe.yaml_tree import apply_overrides, edit_text, parse_value, parse_yaml


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"), ("on", "on"), ("true", True), ("False", False), ("~", None), ("", None), ("null", None),
        ("5e-3", 0.005), ("1e6", 1e6), (".5", 0.5), ("-0.5", -0.5), ("1.", 1.0), (".inf", float("inf")), ("010", 10),
        ("0x1F", 31), ("0o17", 15), ("1_000", "1_000"), ("12:30:45", "12:30:45"), ("2024-01-01", "2024-01-01"),
        ("'5'", "5"), ("[a, 1]", ["a", 1]), ("{a: no}", {"a": "no"}), ("data/*.jsonl", "data/*.jsonl"),
    ],
)  # fmt: skip
def test_scalars(written, value):
    found = parse_value(written, "--set")
    assert (found, type(found)) == (value, type(value))


def test_errors_show_no_secrets():
    with pytest.raises(UsageError) as caught:
        parse_yaml("a: {read: https://host/x?X-Amz-Signature=secret}", "r.yaml")
    assert "X-Amz-Signature=***" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_every_part_knows_its_line():
    tree = parse_yaml("a:\n  b: 1\n  c:\n    - x\n    - {y: 2}\n", "r.yaml")
    assert tree.data == {"a": {"b": 1, "c": ["x", {"y": 2}]}}
    lines = {path: place for path, place in tree.places.items() if path}
    assert {".".join(map(str, path)): place for path, place in lines.items()} == {
        "a": "r.yaml, line 1",
        "a.b": "r.yaml, line 2",
        "a.c": "r.yaml, line 3",
        "a.c.0": "r.yaml, line 4",
        "a.c.1": "r.yaml, line 5",
        "a.c.1.y": "r.yaml, line 5",
    }
    assert tree.find_place(("a", "missing", 3)) == "r.yaml, line 1"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\n\tb: 2\n", 2),
        ("a:\n\t- b\n", 2),
        ("a: [1, 2\nb: 3\n", 2),
        ("a: 'open\n", 2),
        ("a: 1\nb: 2\na: 3\n", 3),
        ("a: {b: 1, b: 2}\n", 1),
        ("a: !!python/object:os.system x\n", 1),
        ("a: 1\n? [x]\n: 2\n", 2),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: *nothing\n", 1),
        ("a: %bad\n", 1),
        pytest.param("a: 1\nb: " + "9" * 5000, 2, id="too many digits"),
    ],
)
def test_broken_yaml_is_refused_with_its_line(text, line):
    with pytest.raises(UsageError) as error:
        parse_yaml(text, "r.yaml")
    assert f"r.yaml, line {line}:" in str(error.value)


def test_a_tab_is_called_a_tab():
    with pytest.raises(UsageError, match=r"line 2.*tab"):
        parse_yaml("a:\n\tb: 2\n", "r.yaml")


def test_a_bomb_is_refused():
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    with pytest.raises(UsageError, match="large"):
        parse_yaml(bomb, "r.yaml")
    with pytest.raises(UsageError, match="deep"):
        parse_yaml("a: &a [*a]\n", "r.yaml")
    with pytest.raises(UsageError):
        parse_yaml("[" * 100_000, "r.yaml")


@given(st.text())
def test_any_text_parses_or_is_refused(text):
    try:
        parse_yaml(text, "r.yaml")
    except UsageError:
        pass


@pytest.mark.parametrize(
    "override",
    [
        "steps.0.length.min_chars=9",
        "steps.0.length.max_chars=null",
        "steps.1.url.words=[a, b]",
        "steps.2.scores.by_language.de.min_words=30",
        "steps.2.scores.min_words=7",
        "steps.3.c4.min_sentences=2",
        "steps.4.code.max_lines=9",
        "seed=3",
        "run.timeout=60",
    ],
)
def test_a_change_in_the_text_is_the_change_of_the_data_and_keeps_comments(override):
    text = """\
# the first
output: out   # here
seed: 0
run:
steps:
  - length:   # of documents
      min_chars: 5  # short
      # the last
  - url
  - scores: {min_words: 5, by_language: {th: {min_words: 3}}}  # words
  - c4: {}
  - code:
"""
    edited = edit_text(text, [override])
    tree = parse_yaml(text, "a")
    apply_overrides(tree, [override])
    assert parse_yaml(edited, "a").data == tree.data
    for comment in ("# the first", "# here", "# of documents", "# short", "# the last", "# words"):
        assert edited.count(comment) == 1
