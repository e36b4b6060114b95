"""The step that every source begins with."""

from __future__ import annotations

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.names import one_of
from gristmill.core.records import ORIGIN, RECORD, TEXT
from gristmill.core.step import Step

FORMATS = ("jsonl", "parquet", "arrow", "hugging_face", "text", "webdataset", "gristmill")


class Read(Step, frozen=True, kw_only=True, tag="read"):
    r"""Read records from files: one source of a recipe.

    `read` names the files: paths, globs (`data/*.jsonl.zst`), brace lists and ranges (`part-{0000..0099}.parquet`),
    folders, or a list of these. `text` names the field that holds the text; a dot steps into objects (`text:
    payload.body`). `columns` carries more fields along, typed by what the files hold when the run is planned.

    >>> Read(read="data/*.parquet", text="content", columns=["url"]).text
    'content'

    Formats (from the file's name, unless `format` says it):

    * `jsonl`: one object a line, in any compression. Each line is judged alone.
    * `parquet`, `arrow` (file and stream), `hugging_face` (a folder written by `save_to_disk`).
    * `text`: a document a file, or one between each two `separator`s (`separator: "\n\n"`).
    * `gristmill`: the folder of a finished dataset, whatever its shards are; found by its manifest. `split` names one
      split of it, or of a `hugging_face` folder.
    * `webdataset`: tar files; `text: txt` names a member's extension, `text: json.content` a field of a JSON member.
    """

    read: str | list[str]
    format: str | None = None
    text: str = TEXT
    columns: list[str] = msgspec.field(default_factory=list)
    split: str | None = None
    separator: str | None = None
    max_record_bytes: int = 64 << 20
    """Larger records are set aside by reference, never held in memory."""

    def __post_init__(self) -> None:
        if not self.read:
            raise UsageError("read: no files named", help="give a path, a glob or a list of them")
        if self.format is not None:
            one_of("format", self.format, FORMATS)
        if not self.text:
            raise UsageError("text: must name the field that holds the text")
        if self.separator is not None:
            if not self.separator:
                raise UsageError("separator: must not be empty", help="leave it out to read a document a file")
            if self.format not in (None, "text"):
                raise UsageError(f"separator: only text is cut at a separator, not {self.format}")
        if self.max_record_bytes < 1:
            raise UsageError(f"max_record_bytes: must be at least 1, not {self.max_record_bytes}")
        self._check_columns()

    def _check_columns(self) -> None:
        for index, name in enumerate(self.columns):
            if name in self.columns[:index]:
                raise UsageError(f"columns: {name!r} is named twice")
            if name in (ORIGIN, RECORD, TEXT):
                hint = "the text is always there" if name == TEXT else "rename the field in the files"
                raise UsageError(f"columns: {name!r} is a name that every source has already", help=hint)
