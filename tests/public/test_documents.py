"""What the documents show is true: Python examples run as scripts, commands succeed, links lead somewhere.

The README is longer to prove (`test_readme.py`), and guides are followed as a whole (`test_guides.py`).
"""

import re
import runpy
import shlex
from pathlib import Path

import msgspec
import pytest
from gristmill_testing.documents import FENCE, run_command

from gristmill import Recipe, steps
from gristmill.recipe.load import STEPS, parse_recipe, step_class

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
DOCUMENTS += [ROOT / "CHANGELOG.md", *sorted(ROOT.glob("benchmarks/**/*.md")), *sorted(ROOT.glob("skills/*/SKILL.md"))]
PAGES = [document for document in DOCUMENTS[1:] if document.parent.name != "guides"]
LINK = re.compile(r"\]\(([^)#\s]+)")


def _blocks(language, documents=PAGES):
    """Fenced blocks of one language, those of the README and of guides left out."""
    blocks = []
    for document in documents:
        text = document.read_text()
        for match in FENCE.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                blocks.append(pytest.param(match[2], id=f"{document.relative_to(ROOT)}:{line}"))
    return blocks


@pytest.mark.full
@pytest.mark.parametrize("source", _blocks("python"))
def test_python_example_runs_as_a_script(source, tmp_path, run_script):
    if "from trl import" in source:  # a trainer of others, which nothing else here needs
        pytest.importorskip("trl", reason="TRL is not installed: `pip install trl` to run this")
    script = tmp_path / "example.py"
    script.write_text(source)
    run_script(script.name, tmp_path)


@pytest.mark.parametrize("commands", _blocks("bash"))
def test_commands_work(commands, tmp_path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "gristmill":
            run_command(words, tmp_path)
        elif words and words[0] == "make":
            assert set(words[1:]) <= targets


@pytest.mark.parametrize("text", _blocks("yaml", DOCUMENTS))
def test_recipes_can_be_read(text):
    parse_recipe(text)


def test_recipe_reference_is_what_the_structs_say():
    module = runpy.run_path(str(ROOT / "docs/reference/recipes.py"))
    assert module["make_page"]() == module["PAGE"].read_text(), "stale: `make reference` writes the page again"


def test_recipe_reference_names_every_key_of_every_step():
    """And says what it means, and its type: a field without a docstring would have an empty cell."""
    pages = re.split(r"^##+ (.+)$", (ROOT / "docs/reference/recipes.md").read_text(), flags=re.MULTILINE)
    page_of = dict(zip(pages[1::2], pages[2::2], strict=True))
    described = {name: step_class(name) for name in STEPS}
    described |= {"Keys of a recipe": Recipe, "Keys of a source": steps.Read}
    for name, struct in described.items():
        rows = re.findall(r"^\| (`\w+`(?:, `\w+`)?) \| (.*) \| (.*) \| (.*) \|$", page_of[name], re.MULTILINE)
        assert {key for keys, *_ in rows for key in re.findall(r"\w+", keys)} == {
            field.encode_name for field in msgspec.structs.fields(struct)
        }, name
        assert [row for row in rows if not all(cell.strip() for cell in row)] == [], name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_are_not_broken(document):
    for target in LINK.findall(document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_index_links_every_page():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text()) if "://" not in target}
    assert [str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md") if page not in linked | {index}] == []


def test_decisions_are_half_a_page_each_and_numbered_without_holes():
    pages = sorted(ROOT.glob("docs/decisions/*.md"))
    assert [page.name[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for number, page in enumerate(pages, 1):
        text = page.read_text()
        assert text.startswith(f"# {number}. ")
        assert len(re.findall(r"[A-Za-z][A-Za-z'-]*", text)) <= 250, page.name
