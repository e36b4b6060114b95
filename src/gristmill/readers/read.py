"""`read`: the step that every source begins with."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from string import Formatter
from typing import Any, ClassVar, Literal

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.recipe import PythonRecords
from gristmill.core.records import INPUT_IDS, LOSS_MASK, LOSS_WEIGHTS, ORIGIN, RECORD, SPLIT, TEXT
from gristmill.core.splits import TRAIN
from gristmill.core.step import Step
from gristmill.readers.formats import SUFFIXES, check_format

_MAX_VOCAB_SIZE = 1 << 31
_RESERVED_IN_ROWS = (
    INPUT_IDS,
    LOSS_MASK,
    LOSS_WEIGHTS,
    ORIGIN,
    SPLIT,
    TEXT,
    RECORD,
    "lengths",
    "origins",
    "images",
)
"""Names that a column with a number for each token cannot have."""
_DATA_NAME = re.compile(
    rf"(?:(?:{'|'.join(map(re.escape, SUFFIXES))})(?:\.(?:gz|zstd?|bz2|xz|lz4))?|/\**)$", re.IGNORECASE
)


class Read(Step, frozen=True, kw_only=True, tag="read"):
    r"""Read records from files: one source of a recipe.

    `read` names the files: paths, globs (`data/*.jsonl.zst`), brace lists and ranges (`part-{0000..0099}.parquet`),
    folders, or a list of these. `text` names the field that holds the text; a dot steps into objects (`text:
    payload.body`). If documents are written, all other fields are kept, or only those that `columns` names, each with
    one type. In Python `read` may also be the records themselves: an iterable of dicts or of texts, a table (pandas,
    polars, Arrow), or a dataset of `datasets`.

    >>> Read(read="data/*.parquet", text="content", columns=["url"]).text
    'content'

    Formats (from the file's name, unless `format` is set):

    * `jsonl`: one object a line, in any compression. A bad line affects no other.
    * `json`: detected by content. The records are the elements of an array, also if pretty-printed; or one object a
      line; or, in one object with exactly one array of objects, the elements of that array. `field: data` names the
      array.
    * `csv`: `.csv` and `.tsv`; the first row names the columns, a sample tells the delimiter and whether quotes enclose
      fields. Values are text; `types: {score: float64}` declares numbers.
    * `parquet`, `arrow` (file and stream), `hugging_face` (a folder written by `save_to_disk`).
    * `text`: one document a file, or one between each two `separator`s (`separator: "\n\n"`).
    * `gristmill`: the folder of a finished dataset of documents, in any shard format, or of tokens that are not packed;
      detected by its manifest.
    * `samples`: the same for a dataset of samples in tars, each member a column.
    * `agent`: [sessions of agents](chats.md#agent-sessions): logs of Claude Code, Codex, pi and OpenHands, trajectories
      (`.traj`, `messages` as JSON in a string), rollouts. Each sequence of messages becomes a chat.
    * `warc`: web archives (`.warc.gz`, `.warc.wet.gz`): pages as HTML, or texts of WET, with `url`, `host`, `date` and
      `content_type` as columns. The step `html` makes text of pages.
    * `webdataset`: tar files; `text: txt` names a member's extension, `text: json.content` a field of a JSON member.
      Members of all other extensions are columns: of text, or of bytes. Samples need no text.
    * `files`: a folder of images or other files, each a sample, as in Hugging Face's ImageFolder: classes are folders,
      `metadata.jsonl` or `metadata.csv` and files such as `0001.txt` next to `0001.jpg` describe them.

    Datasets with splits keep them; `read: {train: "data/train*.jsonl", validation: data/val.jsonl}` makes splits of
    files. `splits` names the splits to read and their new names (`{train: train_sft, validation: test_sft}`), or is
    `all_as_train` or `by_name`; `config` chooses one of several configs of a folder of the Hugging Face Hub.

    Records may be [token ids](../guides/post-training.md#literal-tokens) already, not text: `ids: input_ids` with
    `labels`, `mask` or `weights`, and `tokenizer` or `vocab_size`.
    """

    version: ClassVar[int] = 2
    """2: the headers of a tar count in the size of its cells."""

    read: Any
    """Files: a path, a glob (`data/**/*.jsonl`), a brace list or range (`part-{000..099}.parquet`), a folder, an
    fsspec URL (`s3://…`), a list of these, or a mapping of [splits](writing-recipes.md#splits) to them. In Python also
    [records](writing-recipes.md#records-from-python): an iterable of dicts or of texts, a table, or a dataset of
    `datasets`.
    """
    format: str | None = None
    """One of the [formats](writing-recipes.md#formats), or a reader of a [plugin](plugins.md). None: by the names of
    the files.
    """
    text: str = TEXT
    """The field that holds the text; a dot steps into objects. Or a [template](writing-recipes.md#the-text) of fields:
    `"{title}\n\n{body}"`. [Samples](samples.md) need none.
    """
    columns: list[str] = msgspec.field(default_factory=list)
    """The fields to carry along, each of one type, which is fixed when the run is planned. By default
    [all](writing-recipes.md#columns), where documents are written.
    """
    splits: str | dict[str, str] | None = None
    """For a dataset with [splits](writing-recipes.md#splits): one split (`train`), new names for some of them
    (`{train: train_sft, validation: test_sft}`), or `all_as_train`. None: all, as they are. For files whose names say
    splits: `by_name` or `all_as_train`.
    """
    config: str | None = None
    """For a folder of the Hub: one of the configs in its card. None: the only one."""
    field: str | None = None
    """For a `.json` file that is one object: the field that holds the array of records, `data` or `result.items`.
    None: by content.
    """
    delimiter: str | None = None
    """For CSV: the character between two fields. None: by a sample."""
    encoding: str | None = None
    """For CSV: `latin-1`, `cp1252`, `utf-16`, … By default UTF-8, or UTF-16 if the file begins with its byte order
    mark.
    """
    types: dict[str, Literal["string", "int64", "float64", "bool"]] | None = None
    """For CSV: the types of columns that are not text: `{score: float64, n: int64, ok: bool}`."""
    separator: str | None = None
    """For text: cut each file at this string. None: a file is a document."""
    max_record_bytes: int = 64 << 20
    """Larger records are quarantined by reference and never held in memory."""
    ids: str | list[str] | None = None
    """For records of [token ids](../guides/post-training.md#literal-tokens): the field that holds the ids, or the
    fields of a prompt and its completion, which are joined: `[prompt_token_ids, completion_token_ids]`.
    """
    labels: str | None = None
    """With `ids`: the field of labels. Each is its id, or -100 where a token is not trained."""
    mask: str | None = None
    """With `ids`: the field that says which tokens are trained, with 1 or true."""
    weights: str | None = None
    """With `ids`: the field of the weights of tokens in the loss, stored as `loss_weights`; 0 is not trained."""
    token_columns: list[str] = msgspec.field(default_factory=list)
    """With `ids`: fields with a number for each token, such as log-probabilities, which are packed with the tokens."""
    tokenizer: str | None = None
    """With `ids`: the tokenizer that made them: a folder, a file or a name on the Hugging Face Hub."""
    vocab_size: int | None = None
    """With `ids`: the size of the vocabulary, where no tokenizer is named."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "read", _check_paths_or_records(self.read))
        if isinstance(self.read, PythonRecords) and (self.format or self.separator):
            raise UsageError("format and separator are for files, not for records from Python", help="leave them out")
        if self.format is not None:
            check_format(self.format)
        if self.field is not None and (not self.field or self.format not in (None, "json")):
            raise UsageError(
                f"field names the array of records in a JSON file, not {self.field!r} of {self.format or 'a file'}"
            )
        self._check_csv()
        self._check_ids()
        if not self.text:
            raise UsageError("text must name the field that holds the text")
        if self.is_text_composed and not any(name for _, name in parse_text_template(self.text)):
            raise UsageError(f"text: {self.text!r} names no field", help='write "{title}\\n\\n{body}"')
        if self.separator is not None:
            if not self.separator:
                raise UsageError("separator must not be empty", help="leave it out to read one document a file")
            if self.format not in (None, "text"):
                raise UsageError(f"separator: only text is cut at a separator, not {self.format}")
        if self.max_record_bytes < 1:
            raise UsageError(f"max_record_bytes must be at least 1, not {self.max_record_bytes}")
        for index, name in enumerate(self.columns):
            if name in self.columns[:index]:
                raise UsageError(f"columns: {name!r} is named twice")
            if name in (ORIGIN, RECORD, SPLIT, TEXT):
                hint = "the text is always kept" if name == TEXT else "rename the field in the files"
                raise UsageError(f"columns: every source has a column {name!r} already", help=hint)

    @property
    def is_text_composed(self) -> bool:
        """Whether `text` is a template of several fields, not the name of one."""
        return "{" in self.text

    @property
    def id_fields(self) -> tuple[str, ...]:
        """The fields of token ids, which are joined; none if records are text."""
        return (self.ids,) if isinstance(self.ids, str) else tuple(self.ids or ())

    def _check_ids(self) -> None:
        if not self.id_fields:
            for key in ("labels", "mask", "weights", "token_columns", "tokenizer", "vocab_size", "ids"):
                if getattr(self, key) not in (None, []) or (key == "ids" and self.ids is not None):
                    raise UsageError(f"{key} is for records of token ids", help="name their field: ids: input_ids")
            return
        if (self.tokenizer is None) == (self.vocab_size is None):
            raise UsageError(
                "ids are checked against a vocabulary: name the tokenizer that made them, or its vocab_size",
                help="tokenizer: path/to/tokenizer, or vocab_size: 50257",
            )
        if self.vocab_size is not None and not 1 <= self.vocab_size <= _MAX_VOCAB_SIZE:
            raise UsageError(f"vocab_size must be from 1 to {_MAX_VOCAB_SIZE:,}, not {self.vocab_size}")
        if self.text != TEXT:
            raise UsageError("text: records of token ids have no text", help="leave out text, or ids")
        if self.labels is not None and self.mask is not None:
            raise UsageError("labels and mask both say which tokens are trained", help="leave one of them out")
        named = [*self.id_fields, *filter(None, (self.labels, self.mask, self.weights)), *self.token_columns]
        for index, name in enumerate(named):
            if not name or name in named[:index]:
                raise UsageError(f"read: the field {name!r} of token ids is named twice or empty")
        for name in self.token_columns:
            if name in _RESERVED_IN_ROWS or "." in name:
                raise UsageError(
                    f"token_columns: rows cannot have a column {name!r} of numbers", help="rename the field"
                )

    def _check_csv(self) -> None:
        csv_keys = [name for name in ("delimiter", "encoding", "types") if getattr(self, name) is not None]
        if csv_keys and (self.format not in (None, "csv") or isinstance(self.read, PythonRecords)):
            raise UsageError(f"{csv_keys[0]} is only for CSV, not for {self.format or 'records from Python'}")
        if self.delimiter is not None and (
            len(self.delimiter) != 1 or self.delimiter in '\r\n"' or self.delimiter > "~"
        ):
            raise UsageError(
                f"delimiter must be one ASCII character, not {self.delimiter!r}", help='write "\\t" for a tab'
            )
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except LookupError as error:
                raise UsageError(
                    f"encoding: Python does not know {self.encoding!r}", help="use one such as utf-8 or latin-1"
                ) from error


def _check_paths_or_records(value: Any) -> str | list[str] | dict[str, str | list[str]] | PythonRecords:
    """Return the value of `read` as paths or as records, or as splits of either.

    A string is a path. A list of strings is a list of paths, unless its strings look like texts; a list whose first
    entry exists as a file or folder is a list of paths, even if its names look like patterns.
    """
    if isinstance(value, PythonRecords):
        return value
    if isinstance(value, Mapping) and TRAIN in value and not any(isinstance(part, Mapping) for part in value.values()):
        parts = {str(split): _check_paths_or_records(part) for split, part in value.items()}
        records = {split: part for split, part in parts.items() if isinstance(part, PythonRecords)}
        if not records:
            return parts  # type: ignore[return-value]
        if len(records) < len(parts):
            raise UsageError("read: some splits are paths and others records", help="give paths for all, or records")
        return PythonRecords.join(records)
    if isinstance(value, (str, os.PathLike)):
        paths = [value]
    elif isinstance(value, (list, tuple)) and (not value or isinstance(value[0], (str, os.PathLike))):
        paths = list(value)
        # Path.exists would raise for texts that are too long for a name, or hold NUL.
        if paths and _reads_like_text(paths[0]) and os.path.exists(paths[0]):  # noqa: PTH110
            paths = [to_path(path) if isinstance(path, str) else path for path in paths]
    else:
        return PythonRecords.of(value)
    if not isinstance(value, str) and any(isinstance(path, str) and _reads_like_text(path) for path in paths):
        for index, entry in enumerate(paths):
            if not isinstance(entry, (str, os.PathLike)):
                raise UsageError(
                    f"read: the list begins with a text, but entry {index} is {entry!r:.100}",
                    help='give texts only, or records as dicts: {"text": ...}',
                )
        if any(not isinstance(path, str) or looks_like_path(path) for path in paths):
            raise UsageError(
                f"read: a list has both paths and texts: {next(filter(_reads_like_text, paths))!r:.100}",
                help='give paths, or records as dicts: {"text": ...}',
            )
        return PythonRecords.of(paths)
    for path in paths:
        if not isinstance(path, (str, os.PathLike)):
            raise UsageError(f"read: {path!r:.100} is in a list of paths", help="give paths or records, not both")
    if not any(map(os.fspath, paths)):
        raise UsageError(
            "read is empty: it has no files and no records", help="give a path, a glob, a list of them, or records"
        )
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else [os.fspath(path) for path in paths]


def parse_text_template(template: str) -> list[tuple[str, str]]:
    """Parse a template of texts as literals and the field after each; the last may have none.

    >>> parse_text_template("# {title}: {body.text}")
    [('# ', 'title'), (': ', 'body.text')]
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"text: {template!r}: {error}", help="write {field}, and {{ for a brace") from None
    for _, name, spec, conversion in parts:
        if name == "" or spec or conversion:
            raise UsageError(f"text: {template!r} is not a template of fields", help='write "{title}\\n\\n{body}"')
    return [(literal, name or "") for literal, name, _, _ in parts]


def list_patterns(value: Any) -> list[str]:
    """List all paths and patterns of a `read`, of all splits."""
    if isinstance(value, Mapping):
        return [pattern for part in value.values() for pattern in list_patterns(part)]
    return [value] if isinstance(value, str) else list(value)


def to_path(entry: str) -> str:
    """Return a path in a form that `Read` does not mistake for a text in a list.

    >>> to_path("my corpus"), to_path("my corpus/*.jsonl"), to_path("s3://bucket/my corpus")
    ('./my corpus', 'my corpus/*.jsonl', 's3://bucket/my corpus')
    """
    if len(entry) > 4096 or "\n" in entry:
        raise UsageError(f"read: {entry!r:.100} is not a path", help="give paths, patterns or folders")
    return f"./{entry}" if _reads_like_text(entry) else entry


def _reads_like_text(entry: object) -> bool:
    """Whether a string of a list is a text, not a path: it has white space, or is too long for a file name."""
    return isinstance(entry, str) and not looks_like_path(entry) and (len(entry) > 255 or any(map(str.isspace, entry)))


def looks_like_path(entry: str) -> bool:
    """Whether a string is a path by its shape: a URL, an absolute path, or a name that ends like a data file.

    >>> looks_like_path("my data/*.jsonl.gz"), looks_like_path("One text. And/or two.")
    (True, False)
    """
    if len(entry) > 4096 or "\n" in entry:
        return False
    is_placed = entry.startswith(("/", "./", "../", "~/")) or "://" in entry.partition(" ")[0]
    return is_placed or _DATA_NAME.search(entry) is not None
