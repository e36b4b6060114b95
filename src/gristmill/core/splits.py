"""Which splits of a source are read, and under which names: one rule for every source that has splits.

A split is known from `dataset_dict.json`, a `datasets` object, the `configs` of a Hub card, the names of Hub files
(`data/NAME-00000-of-00001.parquet`) or a manifest of Gristmill; or it is declared, as `read: {train: …}`, or taken from
names of files and folders by `splits: by_name`. Names alone never define a split: if they say one, the plan asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

TRAIN = "train"
ALL_AS_TRAIN = "all_as_train"
BY_NAME = "by_name"
FOLDER_SPLITS = {"train": TRAIN, "training": TRAIN} | dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
FOLDER_SPLITS |= dict.fromkeys(("test", "testing", "eval"), "test")
"""The splits that the first folders of samples may name."""

# Names next to the folders of splits in a dataset.
_RESERVED_NAMES = (
    "README.md",
    "dataset_dict.json",
    "dropped",
    "manifest.json",
    "origins",
    "quarantine",
    "report.html",
    "report.json",
    "tokenizer",
)
_MAX_NAME_BYTES = 100
_NAMED = FOLDER_SPLITS | {"evaluation": "test", "heldout": "test", "holdout": "test"}
_WORD = re.compile(rf"(?:^|(?<=[\W_\d]))(?:{'|'.join(_NAMED)})(?=$|[\W_\d])", re.IGNORECASE)


def choose_splits(
    split_names: Sequence[str], choice: str | Mapping[str, str] | None, where: str, *, needs_train: bool = True
) -> dict[str, str]:
    """Map each split that is read to its name in the output.

    Args:
        split_names: The splits of the source.
        choice: The recipe key `splits` of the source: None for all splits under their own names, one name, a mapping
            from new names to names of the source, or `all_as_train`.
        where: The source, for error messages.
        needs_train: Whether to refuse a choice without `train`, unless it is a mapping.

    >>> choose_splits(["train_sft", "test_sft", "test_gen"], {"train": "train_sft", "test": "test_sft"}, "chats")
    {'train_sft': 'train', 'test_sft': 'test'}
    """
    if choice == ALL_AS_TRAIN:
        return dict.fromkeys(split_names, TRAIN)
    if isinstance(choice, Mapping):
        chosen = _apply_mapping(split_names, choice)
    elif choice is None:
        chosen = {name: name for name in split_names}
    else:
        check_choice("splits", choice, split_names)
        chosen = {choice: choice}
    folders: dict[str, str] = {}
    for name in chosen.values():
        _check_name(name, where)
        if folders.setdefault(name.casefold(), name) != name:
            raise UsageError(f"{where}: two splits differ only in case: {name}", help="rename one of them")
    if needs_train and TRAIN not in chosen.values() and not isinstance(choice, Mapping):
        if choice is not None:
            raise UsageError(
                f"splits: {choice} alone leaves no split train in {where}",
                help=f"splits: {{train: {choice}}} trains on it, splits: {{{choice}: {choice}}} keeps it held out",
            )
        raise UsageError(
            f"{where} has no split train: its splits are {', '.join(split_names)}",
            help=f"name the use of each, as in {suggest_mapping(split_names)}; "
            f"splits: {ALL_AS_TRAIN} trains on all of them",
        )
    return chosen


def suggest_mapping(split_names: Sequence[str]) -> str:
    """Suggest a value of the key `split` for a source without `train`.

    >>> suggest_mapping(["train_sft", "test_sft"]), suggest_mapping(["test"])
    ('splits: {train: train_sft, validation: test_sft}', 'splits: {train: test}')
    """
    held_out = [name for name in split_names if looks_held_out(name)]
    for_training = [name for name in split_names if name not in held_out] or held_out
    candidates = [name for name in held_out if name != for_training[0]]
    validation = f", validation: {candidates[0]}" if candidates else ""
    return f"splits: {{train: {for_training[0]}{validation}}}"


def looks_held_out(name: str) -> bool:
    """Whether the name of a split or file suggests that it is not for training.

    >>> [looks_held_out(name) for name in ("data/test-00001.jsonl", "dev.parquet", "latest.jsonl", "train.jsonl")]
    [True, True, False, False]
    """
    return not set(list_named_splits(name)) <= {TRAIN}


def list_named_splits(path: str) -> list[str]:
    """List the splits that a path names: its file, or else the nearest of its folders that names any.

    >>> [list_named_splits(path) for path in ("test/0.parquet", "test/train.jsonl", "a.jsonl", "dev-train.jsonl")]
    [['test'], ['train'], [], ['validation', 'train']]
    """
    for part in reversed(path.split("/")):
        if words := _WORD.findall(part):
            return list(dict.fromkeys(_NAMED[word.lower()] for word in words))
    return []


def _apply_mapping(split_names: Sequence[str], choice: Mapping[str, str]) -> dict[str, str]:
    if not choice:
        raise UsageError("splits: an empty mapping reads nothing", help=f"write {suggest_mapping(split_names)}")
    chosen: dict[str, str] = {}
    for name, split in choice.items():
        check_choice(f"splits: {name}", split, split_names)
        if split in chosen:
            raise UsageError(f"splits: {split} would be both {chosen[split]} and {name}", help="give it one name")
        chosen[split] = name
    return chosen


def _check_name(name: str, where: str) -> None:
    """Refuse a name that cannot be a folder of the output."""
    is_path = any(character in name for character in "/\\\0")
    if not name or is_path or name[0] in "._" or len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES:
        problem = "it becomes a folder of the output: no slashes, no dot or underscore at the start, at most 100 bytes"
    elif not name.isprintable():
        problem = "it has characters that cannot be printed"
    elif name.lower() in _RESERVED_NAMES:
        problem = "the output has a file or folder of that name"
    else:
        return
    raise UsageError(f"{where}: a split cannot be called {name!r}: {problem}", help=f"splits: {{other_name: {name}}}")


def split_by_folder(paths: Sequence[str]) -> list[str]:
    """Return the split that the first folder of each path names; none, if some name no split or none is `train`.

    >>> split_by_folder(["train/1.png", "val/2.png"]), split_by_folder(["train/1.png", "3.png"])
    (['train', 'validation'], ['', ''])
    """
    firsts = [path.partition("/") for path in paths]
    names = [FOLDER_SPLITS.get(first.lower(), "") if slash else "" for first, slash, _ in firsts]
    return names if all(names) and TRAIN in names else [""] * len(names)
