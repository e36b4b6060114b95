import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe, Source
from gristmill.recipe.load import load_recipe, parse_recipe, step_class
from gristmill.steps import Length, Map, Read, Sample, Split, Write

DESIGN = """\
output: out/web
seed: 7
sources:
  web:
    read: "data/web-*.jsonl.zst"
    steps: [sample: {fraction: 5e-1}, length]
  books: {read: "data/books/*.parquet", text: content}
steps:
  - length: {min_chars: 100, max_chars: 100000}
  - split: {validation: 0.005}
  - write: {format: jsonl}
mixture: {web: 0.75, books: 0.25}
max_quarantine: 0.01
"""


def test_the_whole_form():
    recipe = parse_recipe(DESIGN)
    assert recipe.sources == {
        "web": Source(Read(read="data/web-*.jsonl.zst"), [Sample(fraction=0.5), Length()]),
        "books": Source(Read(read="data/books/*.parquet", text="content")),
    }
    assert recipe.steps == (
        Length(min_chars=100, max_chars=100000), Split(validation=0.005), Write(format="jsonl"),
    )  # fmt: skip
    assert (recipe.seed, recipe.mixture, recipe.output) == (7, {"web": 0.75, "books": 0.25}, "out/web")


def edited(old, new):
    assert old in DESIGN
    return DESIGN.replace(old, new)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (edited("seed: 7", "sead: 7"), 2, "seed"),
        (edited("seed: 7", "seed: seven"), 2, "int"),
        (edited("seed: 7", "seed: 7.5"), 2, "int"),
        (edited("seed: 7", "seed: true"), 2, "int"),
        (edited("seed: 7", "folder: x"), 2, "folder"),
        (edited("text: content", "txt: content"), 7, "text"),
        (edited("text: content", "text: 5"), 7, "str"),
        (edited("  - split", "  - splitt"), 10, "split"),
        (edited("max_chars: 100000", "max_char: 1"), 9, "max_chars"),
        (edited("max_chars: 100000", "max_chars: many"), 9, "steps.0.length.max_chars"),
        (edited("max_chars: 100000", "max_chars: 5"), 9, "below min_chars"),
        (edited("fraction: 5e-1", "fraction: 2"), 6, "fraction"),
        (edited("sample: {fraction: 5e-1}", "sample: {}"), 6, "fraction"),
        (edited("sample: {fraction: 5e-1}", "smaple: {}"), 6, "sample"),
        (edited("books: {read", "books: {raed"), 7, "read"),
        (edited('books: {read: "data/books/*.parquet", text: content}', "books: a.parquet"), 7, "read"),
        (edited('books: {read: "data/books/*.parquet", text: content}', "books:"), 7, "nothing"),
        (edited('books: {read: "data/books/*.parquet", text: content}', "a/b: {read: x}"), 7, "a/b"),
        (edited("  - write: {format: jsonl}", "  - write: {format: jsnol}"), 11, "jsonl"),
        (edited("  - write: {format: jsonl}", "  - read: {read: x}"), 11, "sources"),
        (edited("  - write: {format: jsonl}", "  - write: {}\n    length: {}"), 11, "one item"),
        (edited("  - write: {format: jsonl}", "  - write: jsonl"), 11, "pairs"),
        (edited("  - write: {format: jsonl}", "  - write: jsonl"), 11, "did you mean write: {format: jsonl}?"),
        (edited("  - write: {format: jsonl}", "  - write: [3]"), 11, "the keys are format,"),
        (edited("  - write: {format: jsonl}", "  - [write]"), 11, "not a step"),
        (edited("  - write: {format: jsonl}", "  -"), 11, "nothing"),
        (edited("books: 0.25}", "bokos: 0.25}"), 12, "books"),
        (edited("books: 0.25}", "books: -1}"), 12, "-1"),
        (edited("books: 0.25}", "books: x}"), 12, "float"),
        (edited("max_quarantine: 0.01", "max_quarantine: 5"), 13, "0 to 1"),
        (edited("max_quarantine: 0.01", "identity: size"), 13, "identity"),
        (edited("output: out/web", "output: [a]"), 1, "str"),
        (
            edited("max_chars: 100000", "max_chars: many"),
            9,
            "steps.0.length.max_chars: Expected `int | null`, got `str`: 'many'",
        ),
        (edited("output: out/web\n", ""), 1, "output"),
        ("output: out\nsteps: []\n", 1, "sources"),
        ("output: out\nsources: [a]\n", 2, "sources"),
        ("output: out\nsources: {}\n", 2, "source"),
        ("output: out\nsources: {a: {read: x}}\nsteps: {length: {}}\n", 3, "dash"),
        ("- a\n", 1, "recipe"),
        ("", None, "recipe"),
    ],
)
def test_errors_name_line_and_remedy(text, line, said):
    with pytest.raises(UsageError) as error:
        parse_recipe(text, name="r.yaml")
    if line is not None:
        assert f"r.yaml, line {line}:" in str(error.value)
    assert said in str(error.value)


def test_overrides():
    recipe = parse_recipe(
        DESIGN,
        overrides=[
            "seed=3",
            "steps.0.length.min_chars=5",
            "sources.web.read=[a.jsonl, b.jsonl]",
            "sources.web.steps.1.length.min_chars=2",
            "output=else where",
            "sources.books.columns=[url]",
            "max_quarantine=5e-2",
            "slice_bytes=1000",
            "steps.1.split={test: 10}",
        ],
    )
    assert recipe.seed == 3
    assert recipe.steps[0] == Length(min_chars=5, max_chars=100000)
    assert recipe.steps[1] == Split(test=10)
    assert recipe.sources["web"] == Source(
        Read(read=["a.jsonl", "b.jsonl"]), [Sample(fraction=0.5), Length(min_chars=2)]
    )
    assert recipe.sources["books"].read.columns == ["url"]
    assert (recipe.output, recipe.max_quarantine, recipe.slice_bytes) == ("else where", 0.05, 1000)


def test_override_can_add_a_source():
    assert parse_recipe(DESIGN, overrides=["sources.more.read=x.jsonl"]).sources["more"] == Source(Read(read="x.jsonl"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed", "key=value"),
        ("=3", "key=value"),
        ("seed=[", "not YAML"),
        ("sead=3", "seed"),
        ("seed.x=3", "7"),
        ("steps.9.length.min_chars=3", "0 (length)"),
        ("steps.length.min_chars=3", "0 (length)"),
        ("steps.0.length.min_char=3", "min_chars"),
        ("steps.0.length.min_chars=x", "int"),
        ("steps.0.lenght.min_chars=3", "one item"),
    ],
)
def test_wrong_overrides_are_named(override, said):
    with pytest.raises(UsageError) as error:
        parse_recipe(DESIGN, name="r.yaml", overrides=[override])
    assert said in str(error.value)
    if "one item" not in said:
        assert f"--set {override}" in str(error.value)


def test_functions_lie_beside_the_recipe(tmp_path):
    (tmp_path / "functions.py").write_text("def f(record):\n    return record\n")
    path = tmp_path / "recipe.yaml"
    path.write_text("output: out\nsources: {a: {read: x}}\nsteps: [map: {call: functions.py:f}]\n")
    recipe = load_recipe(path)
    assert recipe.folder == str(tmp_path)
    assert recipe.steps[0].resolve(recipe.path(".")) == Map(call=f"{tmp_path}/functions.py:f")
    assert recipe.steps[0].resolve(recipe.path(".")).function({"a": 1}) == {"a": 1}


def test_files_that_are_no_recipes(tmp_path):
    with pytest.raises(UsageError, match="is a folder, not a recipe"):
        load_recipe(tmp_path)
    with pytest.raises(UsageError, match=r"none\.yaml"):
        load_recipe(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        load_recipe(tmp_path / "binary.yaml")
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + DESIGN.encode())
    assert load_recipe(tmp_path / "bom.yaml").seed == 7


KEYS = st.sampled_from(
    ["output", "sources", "steps", "seed", "read", "text", "length", "min_chars", "write", "mixture", "a"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_anything_is_a_recipe_or_a_usage_error(data):
    import yaml

    try:
        parse_recipe(yaml.safe_dump(data))
    except UsageError:
        pass


@pytest.mark.parametrize(
    ("written", "expected"), [("1MiB", 1 << 20), ("'64 MB'", 64_000_000), ("512", 512), ("1.5k", 1500)]
)
def test_sizes_may_have_units(written, expected):
    text = (
        f"{{output: o, slice_bytes: {written}, sources: {{a: {{read: a, max_record_bytes: {written}}}}}, "
        f"steps: [deduplicate: {{partition_bytes: {written}}}, write: {{max_shard_bytes: {written}}}]}}"
    )
    recipe = parse_recipe(text)
    assert recipe.slice_bytes == recipe.sources["a"].read.max_record_bytes == expected
    assert recipe.steps[0].partition_bytes == recipe.steps[1].max_shard_bytes == expected
    assert (
        parse_recipe("{output: o, sources: {a: {read: a}}}", overrides=[f"slice_bytes={written}"]).slice_bytes
        == expected
    )
    assert Recipe(sources=recipe.sources, output="o", slice_bytes=written.strip("'")).slice_bytes == expected


@pytest.mark.parametrize("written", ["1 MBit", "-1MiB", "many", "1iB", "0"])
def test_what_is_no_size_is_refused_with_its_line(written):
    with pytest.raises(UsageError) as raised:
        parse_recipe(f"output: o\nslice_bytes: {written}\nsources: {{a: {{read: a}}}}")
    assert "line 2" in str(raised.value)


@pytest.mark.parametrize("names", [["my corpus", "other corpus"], ["two words"], ["a b.jsonl", "c d"]])
def test_names_with_spaces_in_a_list_are_paths(tmp_path, names):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"output: out\nsources: {{web: {{read: {json.dumps(names)}}}}}\n")
    read = load_recipe(path).sources["web"].read
    assert [os.path.normpath(name) for name in read.read] == names


def test_lines_in_a_list_of_paths_are_refused(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text('output: out\nsources: {web: {read: ["one line\\nand another"]}}\n')
    with pytest.raises(UsageError, match="not a path"):
        load_recipe(path)


def test_unknown_names():
    with pytest.raises(UsageError) as error:
        step_class("lenght")
    assert "length" in error.value.help
    with pytest.raises(AttributeError):
        _ = steps.NoSuchStep
    assert dir(steps) == steps.__all__


def test_importing_the_list_of_steps_is_light():
    code = "import sys, gristmill.steps; print(sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("pyarrow", "numpy", "msgspec", "yaml"):
        assert f"'{heavy}'" not in loaded
