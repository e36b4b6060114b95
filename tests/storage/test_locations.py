"""No path that a stored file names leads out of its folder, whatever the file says."""

import base64
import importlib
import os
import pkgutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gristmill
from gristmill.core.errors import DamagedDatasetError
from gristmill.core.recipe import Recipe
from gristmill.core.step import Step
from gristmill.storage.locations import Count, StoredName, StoredPath, decode_stored, path_below
from gristmill.stream.lanes import arguments

PATH, NAME = (msgspec.inspect.type_info(kind).pattern for kind in (StoredPath, StoredName))

NOT_BELOW_A_FOLDER = {
    "LastQuarantined.file": "an input lies anywhere; it is only named in an error",
    "InputFile.path": "an input lies anywhere; it is read by trace and explain, never written, moved or deleted",
    "InputFile.relative": "for people and for the hash of an input's name; nothing is opened by it",
    "DuplicateCluster.path": "for people: where the input was",
    "ShownCluster.path": "for people: where the input was",
    "_SplitFiles.path": "patterns of a Hub card that choose among files of a listing; nothing is opened by them",
    "SideFile.path": "planned in memory, never stored",
    "SourceFile.path": "planned in memory, never stored",
    "SourceFile.relative": "planned in memory, never stored",
    "Span.file": "planned in memory, never stored",
    "Explanation.file": "for people: where a record is",
    "TokenizerReport.path": "for people: where a tokenizer is",
    "TokenizerFiles.path": "travels to a worker that tries a tokenizer, never stored",
    "TokenizerFiles.files": "travels to a worker that tries a tokenizer, never stored",
    "BorderDocument.place": "for people: where a record is",
    "BorderText.place": "for people: where a record is",
    "ChangedRecord.place": "for people: where a record is",
    "ShownRecord.place": "for people: where a record is",
    "ScoreSummary.file": "written from the manifest for people; nothing is opened by it",
    "IntermediatePointer.folder": "a place of the user's; only the run's own folder in it is touched",
    "_FolderState.files": "compared with a pattern and a listing; only listed files are opened",
    "ScorerOptions.path": "travels to the process that tries a model, never stored",
    "Extracted.path": "travels from a worker of the demo, never stored",
}
PATHLIKE = ("path", "file", "place", "folder", "filename", "relative", "moves", "stale", "stem")


def all_structs():
    for module in pkgutil.walk_packages(gristmill.__path__, "gristmill."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if (error.name or "gristmill").startswith("gristmill"):
                    raise
                # The module of a library that is not installed: its structs, if any, are checked where it is.
    found = set()
    waiting = [msgspec.Struct]
    while waiting:
        waiting = [child for kind in waiting for child in kind.__subclasses__() if child not in found]
        found.update(waiting)
    # The arguments of streams hold functions; they are never stored.
    return [k for k in found if k.__module__.startswith("gristmill.") and k.__module__ != arguments.__name__]


def strings_of(kind):
    """The types of all strings in a type, keys of dicts included."""
    if isinstance(kind, msgspec.inspect.StrType):
        return [kind]
    parts = [getattr(kind, name, None) for name in ("key_type", "value_type", "item_type")]
    parts += [*getattr(kind, "types", ()), *getattr(kind, "item_types", ())]
    return [string for part in parts if part is not None for string in strings_of(part)]


def test_every_stored_struct_has_the_type():
    """Fields that sound like paths, in every struct that the package has, are stored paths or known not to be."""
    checked = 0
    unchecked = []
    for struct in all_structs():
        if issubclass(struct, (Step, Recipe)):  # written by the user
            continue
        for field in msgspec.inspect.type_info(struct).fields:
            sounds_like_a_path = any(field.name in (word, f"{word}s", f"side_{word}s") for word in PATHLIKE)
            for string in strings_of(field.type):
                if string.pattern in (PATH, NAME):
                    checked += 1
                elif sounds_like_a_path and string.pattern is None:
                    unchecked.append(f"{struct.__name__}.{field.name}")
    assert not set(unchecked) - set(NOT_BELOW_A_FOLDER)
    assert checked >= 12


def example_of(kind):
    """A value of a type of msgspec, as plain data, with an element in everything that can have one."""
    match kind:
        case msgspec.inspect.StrType(pattern=pattern):
            return "0123456789abcdef" if pattern not in (None, PATH, NAME) else "safe"
        case msgspec.inspect.IntType():
            return 1
        case msgspec.inspect.FloatType():
            return 0.5
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.BytesType():
            return base64.b64encode(bytes(16)).decode()  # two numbers: the bounds of one partition
        case msgspec.inspect.StructType(cls=struct):
            fields = msgspec.inspect.type_info(struct).fields
            if kind.array_like:
                return [example_of(field.type) for field in fields]
            return {field.encode_name: example_of(field.type) for field in fields}
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return {example_of(key): example_of(value)}
        case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
            return [example_of(item)] * (kind.min_length or 1)
        case msgspec.inspect.TupleType(item_types=items):
            return [example_of(item) for item in items]
        case msgspec.inspect.UnionType(types=types):
            return example_of(next(item for item in types if not isinstance(item, msgspec.inspect.NoneType)))
    return None


def places_of(kind, value, changed):
    """For each string of a stored path or name in the value: the whole value with that one changed."""
    match kind:
        case msgspec.inspect.StrType(pattern=pattern):
            if pattern in (PATH, NAME):
                yield changed
        case msgspec.inspect.StructType(cls=struct, array_like=True):
            for number, field in enumerate(msgspec.inspect.type_info(struct).fields):
                for one in places_of(field.type, value[number], changed):
                    yield [*value[:number], one, *value[number + 1 :]]
        case msgspec.inspect.StructType(cls=struct):
            for field in msgspec.inspect.type_info(struct).fields:
                name = field.encode_name
                for inner in places_of(field.type, value[name], changed):
                    yield {**value, name: inner}
        case msgspec.inspect.DictType(key_type=key_type, value_type=value_type):
            [(key, item)] = value.items()
            for inner in places_of(key_type, key, changed):
                yield {inner: item}
            for inner in places_of(value_type, item, changed):
                yield {key: inner}
        case msgspec.inspect.ListType(item_type=item_type) | msgspec.inspect.VarTupleType(item_type=item_type):
            for inner in places_of(item_type, value[0], changed):
                yield [inner, *value[1:]]
        case msgspec.inspect.TupleType(item_types=types):
            for number, item_type in enumerate(types):
                for inner in places_of(item_type, value[number], changed):
                    yield [*value[:number], inner, *value[number + 1 :]]
        case msgspec.inspect.UnionType(types=types):
            one = next(item for item in types if not isinstance(item, msgspec.inspect.NoneType))
            yield from places_of(one, value, changed)


def stored_structs():
    """Every struct that holds a stored path or name, alone or in others; and the notes that are plain lists."""
    kinds = []
    for struct in all_structs():
        kind = msgspec.inspect.type_info(struct)
        if any(places_of(kind, example_of(kind), "x")):
            kinds.append((struct, kind))
    return [*kinds, *((kind, msgspec.inspect.type_info(kind)) for kind in (list[StoredPath], list[StoredName]))]


parts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="/\0"), min_size=1, max_size=8)
inside = st.lists(parts.filter(lambda part: part not in (".", "..")), min_size=1, max_size=4).map("/".join)
outside = st.one_of(
    st.sampled_from(
        ["", ".", "..", "/", "../v/p.txt", "/etc/passwd", "a/../../v", "a/..", "./a", "a//b", "a/", "a\0b"]
    ),
    inside.map(lambda path: f"/{path}"),
    st.tuples(inside, inside).map("/../".join),
    inside.map(lambda path: f"../{path}"),
    inside.map(lambda path: f"{path}/.."),
)


class Kinds(list):
    """Structs with what is known of them. Hypothesis warns of a repr of 150 kB."""

    def __repr__(self):
        return f"{len(self)} kinds"


@pytest.fixture(scope="module")
def kinds():
    found = stored_structs()
    names = {getattr(struct, "__name__", "") for struct, _ in found}
    held = {
        "Manifest",
        "Shard",
        "TokenizerIdentity",
        "Quarantine",
        "Deduplicated",
        "PublishJournal",
        "SliceResult",
        "UnpackResult",
    }
    assert held | {"Receipt", "SignResult", "_State", "_Splits"} <= names
    return Kinds(found)


@settings(max_examples=25, deadline=None)
@given(path=outside)
def test_a_path_that_leaves_is_refused_wherever_it_stands(kinds, path):
    for struct, kind in kinds:
        value = example_of(kind)
        msgspec.json.decode(msgspec.json.encode(value), type=struct)
        for changed in places_of(kind, value, path):
            with pytest.raises(DamagedDatasetError):
                decode_stored(msgspec.json.encode(changed), struct, "stored.json")


@given(path=outside)
def test_such_a_path_has_no_place(path):
    with pytest.raises(DamagedDatasetError):
        path_below("/some/folder", path)


@given(path=inside)
@example("a b/ü/..c")
def test_a_path_below_is_taken(path):
    assert msgspec.json.decode(msgspec.json.encode(path), type=StoredPath) == path
    assert path_below("/some/folder", path) == Path("/some/folder", path)
    assert os.path.normpath(path_below("/some/folder", path)).startswith("/some/folder/")


@given(count=st.one_of(st.integers(max_value=-1), st.integers(min_value=1 << 48, max_value=(1 << 63) - 1)))
def test_a_count_is_not_negative_and_its_sums_fit(count):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(str(count).encode(), type=Count)


@pytest.mark.parametrize("target", ["../v", "/tmp", "inner/../../v"])
def test_links_that_leave_the_folder_are_refused(tmp_path, target):
    folder = tmp_path / "out"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "v").mkdir()
    (folder / "link").symlink_to(target)
    for path in ("link", "link/file", "link/deep/file"):
        with pytest.raises(DamagedDatasetError, match="link"):
            path_below(folder, path)


def test_links_inside_the_folder_and_to_it_are_followed(tmp_path):
    folder = tmp_path / "out"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/file").write_text("x")
    (folder / "link").symlink_to("inner")
    (tmp_path / "other").symlink_to("out")
    assert path_below(folder, "link/file").read_text() == "x"
    assert path_below(tmp_path / "other", "inner/file").read_text() == "x"
    assert path_below(tmp_path / "other", "link/file").read_text() == "x"
