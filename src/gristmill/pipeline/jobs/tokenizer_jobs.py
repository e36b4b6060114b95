"""Jobs around a tokenizer: train one on the texts of any source, try one on texts."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, TEXT
from gristmill.core.seeds import hash_bound, hash_origins
from gristmill.engine.parallel_map import parallel_map
from gristmill.steps.read import Read, choose_training_files, file_format, list_source_files, open_reader, plan_schema
from gristmill.steps.records.columns import require_column
from gristmill.storage.codecs.compression import find_codec
from gristmill.storage.listing.paths import find_files
from gristmill.text.tokenizers import find_tokenizer, save_tokenizer, train_bpe
from gristmill.text.tokenizers.check_tokenizer import check_tokenizer
from gristmill.text.tokenizers.train import END_OF_TEXT, check_free

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.steps.read import CellBatch
    from gristmill.text.tokenizers import TokenizerReport

_SOURCE = "tokenizer"
_CHECK_BYTES = 16 << 20
_MAX_LIBRARY_FILES = 400
_SIZE_FACTORS = {"compressed": 4.0, "parquet": 3.0}
"""How many times its size a file counts. Decides which documents of a large source a tokenizer is trained on, so a
change gives other tokenizers. What a plan prints has estimates of its own (`outline`)."""


@dataclass(slots=True)
class TrainingSummary:
    """The data that a tokenizer was trained on."""

    folder: str
    num_documents: int = 0
    num_bytes: int = 0
    num_left_out: int = 0
    """Documents left out to stay near `max_bytes`, chosen by a hash of their origins."""
    num_unusable: int = 0
    """Records without a text that can be used."""


def train_tokenizer(
    texts: Read | Iterable[str],
    folder: str | os.PathLike[str],
    *,
    vocab_size: int = 16384,
    special_tokens: Sequence[str] = (END_OF_TEXT,),
    max_bytes: int = 1_000_000_000,
    overwrite: bool = False,
) -> TrainingSummary:
    """Train a byte-level BPE tokenizer and write it into a folder. The same texts always give the same tokenizer.

    Args:
        texts: Texts, or a `steps.Read` that names files. Files are read one cell at a time.
        folder: Where `tokenizer.json` and `tokenizer_config.json` are written.
        vocab_size: Tokens in all, at least 256 and the special tokens.
        special_tokens: Tokens that no text can produce. The first one ends documents.
        max_bytes: A larger source is sampled to about this size, by a hash of each document's origin.
        overwrite: Replace a tokenizer that is in the folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     summary = train_tokenizer(["one fish", "two fish"], f"{folder}/mine", vocab_size=260)
    >>> summary.num_documents, summary.num_bytes
    (2, 16)
    """
    check_free(folder, overwrite=overwrite)
    summary = TrainingSummary(str(folder))
    documents = _sample_texts(texts, max_bytes, summary) if isinstance(texts, Read) else _check_texts(texts)
    files = train_bpe(_count_texts(documents, summary), vocab_size=vocab_size, special_tokens=special_tokens)
    if not summary.num_documents:
        raise UsageError("there are no documents to train on", help="check the files and the name of the text field")
    save_tokenizer(files, folder, overwrite=overwrite)
    return summary


def try_tokenizer(name: str, read: Read | None) -> TokenizerReport:
    """Try a tokenizer on the texts of a source, or of Python's own library. Runs in a worker, with one thread."""
    files = find_tokenizer(name)
    texts = _read_library_texts() if read is None else list(_read_first_texts(read))
    if not texts:
        raise UsageError("there are no documents to try the tokenizer on", help="check the files and the text field")
    report: TokenizerReport
    [report] = parallel_map(lambda texts: check_tokenizer(files, texts), [texts], workers=1, progress=False)
    return report


def _check_texts(texts: Iterable[str]) -> Iterable[str]:
    if isinstance(texts, str):  # iterating over it would train on single letters
        raise UsageError(f"texts are needed, not one text: {texts!r:.100}", help="steps.Read(read=...) names files")
    return texts


def _count_texts(texts: Iterable[str], summary: TrainingSummary) -> Iterator[str]:
    for text in texts:
        summary.num_documents += 1
        summary.num_bytes += len(text.encode())
        yield text


def _sample_texts(read: Read, max_bytes: int, summary: TrainingSummary) -> Iterator[str]:
    files = choose_training_files(list_source_files(_SOURCE, read, find_files(read.read), needs_train=False))
    size = sum(_estimate_text_bytes(file, read.format) for file in files)
    bound = hash_bound(min(1.0, max_bytes / max(1, size)))
    for cell in _read_cells(read, files):
        summary.num_unusable += len(cell.quarantined)
        batch = cell.batch
        if bound < 2**64:
            keep = hash_origins(0, "tokenizer", batch.column(ORIGIN)) < bound
            summary.num_left_out += int(batch.num_rows - keep.sum())
            batch = batch.filter(keep)
        yield from batch.column(TEXT).to_pylist()


def _estimate_text_bytes(file: SourceFile, format: str | None) -> int:
    kind = "compressed" if find_codec(file.path) is not None else file_format(file.path, format)
    return round(file.num_bytes * _SIZE_FACTORS.get(kind, 1.0))


def _read_first_texts(read: Read) -> Iterator[str]:
    files = choose_training_files(list_source_files(_SOURCE, read, find_files(read.read), needs_train=False))
    num_chars = 0
    for cell in _read_cells(read, files):
        for text in cell.batch.column(TEXT).to_pylist():
            num_chars += len(text)
            if num_chars > _CHECK_BYTES:
                return
            yield text


def _read_cells(read: Read, files: Sequence[SourceFile]) -> Iterator[CellBatch]:
    schema = plan_schema(read, files, keeps_record=False)
    require_column(_SOURCE, TEXT, schema)
    for file in files:
        yield from open_reader(read, file, schema).read_cells()


def _read_library_texts() -> list[str]:
    """Read files of Python's own library: text that every machine has."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:_MAX_LIBRARY_FILES]
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]
