"""Only `storage` knows a disk from a store: no other module asks for the class of a location, in any spelling."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gristmill
from gristmill.storage.locations import StorePath

PACKAGE = Path(gristmill.__file__).parent
KINDS = {"Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath", "Location"}
SECRET = {"StorePath", "LocalFolder", "StoreFolder"}
"""Classes that no other module may even name."""
TELLING = {name for name in set(dir(Path)) ^ set(dir(StorePath)) if not name.startswith("__")}
"""What one of the two classes has and the other lacks: `hasattr` would tell them apart."""


def find_questions(code: str) -> Iterator[ast.AST]:
    """Find the places of a module that ask for the class of a location."""
    tree = ast.parse(code)
    kinds, asking = KINDS | SECRET, {"isinstance", "issubclass"}
    for _ in range(2):  # an alias of an alias
        for node in ast.walk(tree):
            pairs: list[tuple[str, str | ast.expr | None]] = []
            if isinstance(node, ast.ImportFrom | ast.Import):
                pairs = [(alias.asname or alias.name, alias.name) for alias in node.names]
            elif isinstance(node, ast.Assign):
                pairs = [(target.id, node.value) for target in node.targets if isinstance(target, ast.Name)]
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name):
                pairs = [(node.target.id, node.value)]
            for name, value in pairs:
                if value in kinds or (isinstance(value, ast.expr) and names_kind(value, kinds)):
                    kinds = kinds | {name}
                if value in asking or (isinstance(value, ast.expr) and names_function(value, asking)):
                    asking = asking | {name}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=function, args=[_, second, *_]) if names_function(function, asking):
                if names_kind(second, kinds, deep=True):
                    yield node
            case ast.Call(func=function, args=[_, ast.Constant(value=name), *_]):
                if names_function(function, {"hasattr", "getattr"}) and name in TELLING:
                    yield node
            case ast.Call(func=ast.Attribute(attr="register"), args=[first, *_]) if names_kind(first, kinds):
                yield node
            case ast.Compare(left=left, comparators=others):
                if any(names_kind(operand, kinds) for operand in (left, *others)):
                    yield node
            case ast.MatchClass(cls=kind) if names_kind(kind, kinds):
                yield node
            case ast.ImportFrom(names=names) if SECRET & {alias.name for alias in names}:
                yield node
            case ast.Attribute(attr=name) | ast.Constant(value=name) if name in SECRET or name == "PosixPath":
                yield node


def names_function(node: ast.expr, names: set[str]) -> bool:
    return (isinstance(node, ast.Name) and node.id in names) or (isinstance(node, ast.Attribute) and node.attr in names)


def names_kind(node: ast.expr, kinds: set[str], *, deep: bool = False) -> bool:
    """Whether an expression is such a class, or a tuple or union of classes with one; `deep`: names one anywhere."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in kinds
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return any(names_kind(part, kinds) for part in parts)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return names_kind(left, kinds) or names_kind(right, kinds)
        case ast.Starred(value=value):
            return names_kind(value, kinds)
    return deep and any(names_kind(part, kinds) for part in ast.walk(node) if isinstance(part, ast.expr))


def test_no_module_asks_for_the_class_of_a_location():
    questions = [
        f"{path}:{node.lineno}: {ast.unparse(node)[:80]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "storage"
        for node in find_questions(path.read_text())
    ]
    assert questions == []


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(x, Path)",
        "isinstance(x,\n    str | pathlib.Path)",
        "import pathlib as p\nisinstance(x, (str, p.PosixPath))",
        "from pathlib import Path as P\nisinstance(x, P)",
        "from pathlib import Path as P\nQ = P\nissubclass(type(x), Q)",
        "KINDS = (Path, str)\nisinstance(x, KINDS)",
        "check = isinstance\ncheck(x, Path)",
        "import builtins\nbuiltins.isinstance(x, Path)",
        "isinstance(x, type(Path()))",
        "isinstance(x, Location)",
        "type(x) is Path",
        "x.__class__ == Path",
        "type(x) in (Path, str)",
        "match x:\n    case Path():\n        pass",
        "show.register(Path)",
        "from gristmill.storage.locations import StorePath",
        "from gristmill.storage import locations\nlocations.StorePath",
        "type(x).__name__ == 'StorePath'",
        "hasattr(x, 'open_store')",
        "getattr(x, 'read_text', None)",
    ],
)
def test_every_spelling_is_found(code):
    assert list(find_questions(code))


@pytest.mark.parametrize(
    "code",
    [
        "from pathlib import Path\nfolder: Path | None = Path(x)",
        "isinstance(x, str | os.PathLike)",
        "path = Path(x)\npath == other",
        "def read(path: Location) -> Path: ...",
    ],
)
def test_paths_may_be_used(code):
    assert list(find_questions(code)) == []
