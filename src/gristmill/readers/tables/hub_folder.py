"""Folders that Hugging Face's tools write: which of their files are in which split, found without these tools.

A repository of the Hub, downloaded or at `hf://`: its card, the YAML at the head of README.md, may say so under
`configs`; else files named `data/NAME-00000-of-00001.parquet`, as `push_to_hub` writes them, are in the split NAME. No
other name makes a split. A card is untrusted: it is read up to 4 MiB, and its patterns only choose among the listed
files.

The output of `save_to_disk`: a dataset is a folder with `state.json`, which names its Arrow files; a DatasetDict is a
folder with `dataset_dict.json`, which names folders of datasets. Other files in them (caches of earlier maps,
descriptions) are not data.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.core.splits import TRAIN
from gristmill.readers.formats import FolderFiles, file_format, has_known_format
from gristmill.readers.read import list_patterns
from gristmill.storage.files import open_input
from gristmill.storage.locations import StoredName, StoredPath  # noqa: TC001  (msgspec looks at types of fields)
from gristmill.storage.patterns import PathPattern, is_wild

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.readers.read import Read
    from gristmill.storage.paths import ListedFile


_CARD = "README.md"
_MAX_CARD_BYTES = 4 << 20
_FRONT_MATTER = re.compile(r"\ufeff?\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", re.DOTALL)
_SPLIT_FILE = re.compile(r"data/([^/]+)-([0-9]{5})-of-([0-9]{5})\.parquet")
_ABOUT = re.compile(
    r"(?:README|LICEN[SC]E|COPYING|NOTICE|CITATION|CHANGELOG|CONTRIBUTING|AUTHORS)(?:[-_.].*)?", re.IGNORECASE
)
"""The names of files that are documentation."""
_DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json")
_NO_DATA = ("README.md", *_DESCRIPTIONS, "dataset_dict.json", "config.json")


class _SplitFiles(msgspec.Struct):
    """The files of one split, as a card lists them."""

    split: str
    path: str | list[str]


class _HubConfig(msgspec.Struct):
    """One config of a repository, as its card describes it."""

    config_name: str
    data_files: str | list[str | _SplitFiles] | None = None
    data_dir: str | None = None
    default: bool = False

    def patterns(self) -> dict[str, list[str]] | None:
        """Return the patterns by split; files without a split are for training, as in `datasets`."""
        if self.data_files is None:
            return None
        entries = [self.data_files] if isinstance(self.data_files, str) else self.data_files
        patterns: dict[str, list[str]] = {}
        for entry in entries:
            split, path = (TRAIN, entry) if isinstance(entry, str) else (entry.split, entry.path)
            patterns.setdefault(split, []).extend([path] if isinstance(path, str) else path)
        return patterns


def find_hub_files(read: Read, files: Sequence[ListedFile]) -> FolderFiles | None:
    """Find the data files of a listed folder by split; None if it is not a repository of the Hub."""
    if not _names_folder(read.read):
        return None
    card = next((file for file in files if file.relative == _CARD), None)
    front_matter = _read_front_matter(card) if card is not None else None
    configs = _parse_configs(front_matter, card.path) if front_matter and card is not None else {}
    config = _choose_config(configs, read.config, card.path if card is not None else "")
    if config is not None and (patterns := config.patterns()) is not None:
        folder = _find_folder(config)
        return FolderFiles({split: _match_files(files, folder, paths) for split, paths in patterns.items()})
    data = [file for file in files if _is_data(file, read)]
    folder = _find_folder(config) if config is not None else ""
    data = [file for file in data if file.relative.startswith(folder)]
    named = {file.relative: _SPLIT_FILE.fullmatch(file.relative.removeprefix(folder)) for file in data}
    if any(named.values()):
        return _split_by_name(data, named)
    if front_matter is None:
        return _leave_out_documentation(files, read)
    num_others = len(files) - len(data)
    return FolderFiles(
        {"": data}, [f"{num_others} files of the repository are not data: {_CARD}, …"] if num_others > 1 else []
    )


def _leave_out_documentation(files: Sequence[ListedFile], read: Read) -> FolderFiles | None:
    """Leave documentation out; None if there is none, or if all data is text: then a README is data too."""
    documentation = [file.relative for file in files if _is_about(file.relative)]
    data = [file for file in files if not _is_about(file.relative)]
    formats = {file_format(file.path, read.format) for file in data if has_known_format(file.relative)}
    if not documentation or not formats - {"text"}:
        return None
    more_text = f" and {len(documentation) - 1} more" if len(documentation) > 1 else ""
    return FolderFiles({"": data}, [f"not data, left out: {documentation[0]}{more_text}"])


def _names_folder(paths: Any) -> bool:
    """Whether `read` is one name and not a pattern: what a pattern matches is always a list of files."""
    names = [] if isinstance(paths, Mapping) else list_patterns(paths)
    return len(names) == 1 and not is_wild(names[0]) and "{" not in names[0]


def _is_about(path: str) -> bool:
    """Whether a file is documentation, by its name; `authors.parquet` is data."""
    name = path.rpartition("/")[2]
    is_text = not has_known_format(name) or file_format(name) == "text"
    return name in _DESCRIPTIONS or (is_text and _ABOUT.fullmatch(name) is not None)


def _is_data(file: ListedFile, read: Read) -> bool:
    name = file.relative.rpartition("/")[2]
    if name in _NO_DATA or _is_about(name):
        return False
    return read.format is not None or has_known_format(file.relative)


def _read_front_matter(card: ListedFile) -> str | None:
    with open_input(card.path) as stream:
        data = stream.read(_MAX_CARD_BYTES)
    match = _FRONT_MATTER.match(data.decode("utf-8", "replace"))
    return match.group(1) if match else None


def _parse_configs(front_matter: str, path: str) -> dict[str, _HubConfig]:
    if "configs" not in front_matter:
        return {}
    import yaml  # noqa: PLC0415  (20 ms in each worker, and only cards need it)

    try:
        card = yaml.load(front_matter, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        entries = card.get("configs") if isinstance(card, dict) else None
        if not entries or all(isinstance(name, str) for name in entries):  # old cards have a list of names
            return {}
        configs = msgspec.convert(entries, list[_HubConfig])
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError, TypeError) as error:
        problem = " ".join(str(error).split())
        raise UsageError(
            f"{path}: its configs cannot be parsed: {problem:.200}",
            help="name the files themselves, like read: repository/data/train-*.parquet",
        ) from error
    return {config.config_name: config for config in configs}


def _choose_config(configs: dict[str, _HubConfig], config_name: str | None, path: str) -> _HubConfig | None:
    if config_name is not None:
        if not configs:
            raise UsageError("config: the folder has no README.md with configs", help="leave it out")
        check_choice("config", config_name, configs)
        return configs[config_name]
    if len(configs) > 1:
        default = next((name for name, config in configs.items() if config.default or name == "default"), None)
        hint = f"config: {default or next(iter(configs))}"
        raise UsageError(
            f"{path} describes {len(configs)} configs: {_join_names(list(configs))}",
            help=f"choose one, like {hint}{' (the default one)' if default else ''}; to read several, use a source for "
            "each",
        )
    return next(iter(configs.values()), None)


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")


def _find_folder(config: _HubConfig) -> str:
    folder = (config.data_dir or "").strip("/")
    return f"{folder}/" if folder not in ("", ".") else ""


def _match_files(files: Sequence[ListedFile], folder: str, paths: Sequence[str]) -> list[ListedFile]:
    patterns = [PathPattern.below(path) for path in paths]
    names = {path.rpartition("/")[2] for path in paths}
    matching = []
    for file in files:
        relative = file.relative.removeprefix(folder)
        name = relative.rpartition("/")[2]
        if not file.relative.startswith(folder) or (name in _NO_DATA and name not in names):
            continue
        if any(pattern.matches(relative.split("/")) for pattern in patterns):
            matching.append(file)
    return matching


def _split_by_name(data: Sequence[ListedFile], named: dict[str, re.Match[str] | None]) -> FolderFiles:
    splits: dict[str, list[ListedFile]] = {}
    totals: Counter[tuple[str, str]] = Counter()
    for file in data:
        match = named[file.relative]
        if match is None:
            raise UsageError(
                f"{file.path} is in no split, but other files of the folder are: data/NAME-00000-of-00001.parquet",
                help="name the files that you want in read: then all of them are for training",
            )
        name, _, total = match.groups()
        splits.setdefault(name, []).append(file)
        totals[name, total] += 1
    missing = [
        f"split {name} has {count} of {int(total)} files"
        for (name, total), count in totals.items()
        if count != int(total)
    ]
    return FolderFiles(splits, missing)


_Described = TypeVar("_Described", bound=msgspec.Struct)
SAVED_DESCRIPTIONS = _STATE, _SPLITS = "state.json", "dataset_dict.json"
"""The files that describe a dataset and a DatasetDict."""


class _DataFile(msgspec.Struct):
    filename: StoredPath


class _State(msgspec.Struct):
    data_files: list[_DataFile] = msgspec.field(name="_data_files")
    indices_files: list[_DataFile] | None = msgspec.field(name="_indices_data_files", default=None)


class _Splits(msgspec.Struct):
    splits: list[StoredName]


def find_folder_format(files: Sequence[ListedFile]) -> str | None:
    """Return `hugging_face` if a listing is that of a saved dataset: its description is in the listed folder itself."""
    return "hugging_face" if any(file.relative in SAVED_DESCRIPTIONS for file in files) else None


def arrange_folder(listed_files: Sequence[ListedFile], where: str) -> FolderFiles:  # noqa: ARG001  (as for all folders)
    """Find the Arrow files of all datasets in a listing, by split; files of no DatasetDict are under an empty name."""
    by_relative = {file.relative: file for file in listed_files}
    states = [file for file in listed_files if posixpath.basename(file.relative) == _STATE]
    split_of = {
        state: split
        for file in listed_files
        if posixpath.basename(file.relative) == _SPLITS
        for state, split in _split_states(file, by_relative).items()
    }
    if not states:
        raise UsageError(
            f"no {_STATE} among {len(listed_files)} files: not a folder written by save_to_disk",
            help="name the dataset's folder itself, without a pattern",
        )
    splits: dict[str, dict[str, ListedFile]] = {}
    for state in states:
        folder = posixpath.dirname(state.relative)
        described = _load(state, _State)
        if described.indices_files:
            raise UsageError(
                f"{state.path}: the dataset is a selection of rows of other files",
                help="save it again after flatten_indices()",
            )
        files = splits.setdefault(split_of.get(state.relative, ""), {})
        for entry in described.data_files:
            relative = posixpath.join(folder, entry.filename)
            files[relative] = _require_file(by_relative, relative, state)
    if not any(splits.values()):
        raise UsageError(
            f"{posixpath.dirname(states[0].path)}: the saved dataset is empty: its {_STATE} names no data files",
            help="check what was saved there, or leave the source out",
        )
    return FolderFiles({split: list(files.values()) for split, files in splits.items()})


def _split_states(file: ListedFile, by_relative: dict[str, ListedFile]) -> dict[str, str]:
    """Return the splits of a DatasetDict by the paths of their states."""
    folder = posixpath.dirname(file.relative)
    states = {posixpath.join(folder, split, _STATE): split for split in _load(file, _Splits).splits}
    for state in states:
        _require_file(by_relative, state, file)
    return states


def _require_file(by_relative: dict[str, ListedFile], relative: str, describing: ListedFile) -> ListedFile:
    if relative not in by_relative:
        raise UsageError(
            f"{describing.path} names {relative}, which does not exist",
            help=f"get {posixpath.basename(relative)} from where the folder came from, or save the dataset again",
            path=relative,
        )
    return by_relative[relative]


def _load(file: ListedFile, kind: type[_Described]) -> _Described:
    with open_input(file.path) as stream:
        data = stream.read()
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{file.path}: not written by save_to_disk: {error}") from error
