"""Plain words: no function is named by a bare participle, no docstring is a fragment, no text uses an odd phrase."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]

# A participle names a state, and a function is an action: `adapt_to_sample`, not `settled`.
_PARTICIPLES = """
accepted adapted added adjusted aligned allowed altered answered applied arranged arrived asked assigned attached
begun bound broken built cached called carried changed checked chosen claimed cleaned closed combined compared
compiled completed confirmed connected converted copied counted covered created cut_off damaged dealt decided
decoded defined delivered derived described detected divided done drawn dropped edited emptied encoded ended
evaluated examined executed expanded explained exported extended fetched filled filtered finished fitted fixed
flattened folded formatted found generated given gone grouped guarded guessed handled hashed held hidden identified
included indexed inferred initialized inserted inspected installed interleaved invoked joined judged kept known laid
left limited linked listed loaded located logged looked lost made mapped marked masked matched measured merged met
mixed moved named narrowed normalized noted obtained opened ordered packed padded paired parsed passed picked placed
planned prepared presented printed processed produced proven provided pushed put_together queued quoted raised
ranked reached received recognized recorded reduced refused registered rejected released removed renamed rendered
reopened repeated replaced reported requested required resolved resolved_together restored resumed returned rounded
sampled saved scaled scanned scored sealed searched seen selected sent settled shaped shared shifted shipped
shortened shown shuffled signed simulated sized skipped sliced solved sought spelled started stated stored streamed
stripped styled summed supplied taken tested tokenized told told_apart touched tracked trained transformed
translated tried trimmed typed united unpacked updated used validated verified visited weighed weighted widened
wrapped written
"""
BANNED_FUNCTIONS = frozenset(_PARTICIPLES.split())

BANNED_PHRASES = {
    "mend": "fix",
    "mends": "fixes",
    "mended": "fixed",
    "anew": "again; rebuild",
    "goes on": "continues, resumes",
    "hangs on": "depends on",
    "hang on": "depend on",
    "set aside": "quarantined",
    "sets aside": "quarantines",
    "setting aside": "quarantining",
    "of yours": "your own",
    "so many": "that many, this many",
}

BANNED_LOCALS = frozenset(["found", "given", "gone", "kept", "made", "seen", "some", "sought", "taken", "told"])
"""A local is a noun: `tokenizer_files`, not `found`."""

BANNED_OPENINGS = ("Of ", "See the module")
BANNED_CLASS_OPENINGS = ("How ", "What ", "Where ", "Which ", "Who ")
"""A class is a thing, so its docstring begins with one: `The decision of a barrier`, not `What a barrier decides`."""

# A phrase may be broken over two lines of prose, of a comment, of a quote in Markdown or of joined string literals.
_GAP = r"(?:\s|#|>|\"|')+f?[\"']?"
_PHRASE = re.compile(
    r"\b(" + "|".join(phrase.replace(" ", _GAP) for phrase in sorted(BANNED_PHRASES, key=len, reverse=True)) + r")\b",
    re.IGNORECASE,
)


def find_phrases(text: str) -> Iterator[tuple[int, str]]:
    """Give the line and a message for each banned phrase."""
    for match in _PHRASE.finditer(text):
        phrase = " ".join(re.findall(r"[a-z]+", match[0].lower()))
        advice = BANNED_PHRASES.get(phrase, "a usual word")
        yield text.count("\n", 0, match.start()) + 1, f"{phrase!r} (better: {advice})"


def find_names_and_docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Give the line and a message for each function named by a participle and each docstring that is a fragment."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not isinstance(node, ast.ClassDef) and node.name.strip("_") in BANNED_FUNCTIONS and not _is_property(node):
            yield node.lineno, f"function {node.name!r}: name the action, with a verb"
        docstring = ast.get_docstring(node)
        if docstring is None:
            continue
        if len(docstring.split()) < 4:
            yield node.lineno, f"docstring of {node.name!r} has under four words: {docstring!r}"
        elif docstring.startswith(BANNED_OPENINGS + BANNED_CLASS_OPENINGS * isinstance(node, ast.ClassDef)):
            yield node.lineno, f"docstring of {node.name!r} has no subject: {docstring[:60]!r}"


def find_locals(text: str) -> Iterator[tuple[int, str]]:
    """Give the line and a message for each parameter and variable of a function that is named by a participle."""
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else None
                if name in BANNED_LOCALS:
                    yield node.lineno, f"local {name!r}: name the thing, with a noun"


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A property is read as a value, so it may be named like one."""
    return any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list)


def find_violations(paths: list[Path]) -> Iterator[str]:
    """One line for each violation, as `path:line: message`."""
    for path in paths:
        text, name = path.read_text(), path.relative_to(_ROOT).as_posix()
        violations = list(find_phrases(text))
        if path.suffix == ".py":
            violations += [*find_names_and_docstrings(text), *find_locals(text)]
        for line, message in sorted(set(violations)):
            yield f"{name}:{line}: {message}"


def list_files() -> list[Path]:
    """List what a reader of the project sees: sources, examples and documents."""
    files = [path for name in ("src", "examples", "docs") for path in (_ROOT / name).rglob("*")]
    return sorted(path for path in [*files, *_ROOT.glob("*.md")] if path.suffix in {".py", ".md"})


def test_wording():
    violations = list(find_violations(list_files()))
    assert not violations, "\n" + "\n".join(violations)


def test_the_scanner_sees_each_pattern():
    functions = 'def settled():\n    """Of one part of it."""\ndef start():\n    """Start one worker now."""\n'
    code = functions + 'class A:\n    """A part."""\n'
    assert [line for line, _ in find_names_and_docstrings(code)] == [1, 1, 5]
    assert [line for line, _ in find_names_and_docstrings('class A:\n    """What a barrier decides."""\n')] == [1]
    assert [line for line, _ in find_locals("def count(kept):\n    found = kept.found\n")] == [1, 2, 2]
    messages = [message for _, message in find_phrases("Mend it.\nIt is set\n    # aside anew.")]
    assert [message.split("'")[1] for message in messages] == ["mend", "set aside", "anew"]
