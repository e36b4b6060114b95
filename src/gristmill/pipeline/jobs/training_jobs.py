"""Jobs that train or try something on the texts of sources.

A tokenizer is trained on the texts of any source, or tried on texts, and a chat template on chats. A classifier is
trained on the texts of two sources, with some held out to tell how good it is.
"""

from __future__ import annotations

import secrets
import sysconfig
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, KINDS, LOSS_MASK, ORIGIN, TEXT, TEXT_TYPE
from gristmill.core.seeds import hash_bound, hash_origins, hash_texts
from gristmill.core.token_kinds import TOKEN_KINDS
from gristmill.engine.parallel_map import parallel_map
from gristmill.pipeline.planning.trials import run_with_limits
from gristmill.readers.formats import file_format
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import choose_training_files, list_source_files, open_reader
from gristmill.steps.column_names import require_column
from gristmill.steps.record_functions import decode_records
from gristmill.steps.tokenize import Tokenize
from gristmill.steps.tokenize.tokenize import to_chat_form
from gristmill.storage.codecs import find_codec
from gristmill.storage.commit import write_file
from gristmill.storage.paths import find_files
from gristmill.text.chats.check_template import TemplateReport  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.text.classifiers.linear_model import train_model
from gristmill.text.tokenizers.byte_lengths import split_by_tokens
from gristmill.text.tokenizers.check_tokenizer import check_tokenizer
from gristmill.text.tokenizers.engine import REFERENCE, load_engine
from gristmill.text.tokenizers.files import find_tokenizer
from gristmill.text.tokenizers.train import END_OF_TEXT, check_free, save_tokenizer, train_bpe

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.core.records import QuarantinedRecord, SourceFile
    from gristmill.readers.cells import CellBatch
    from gristmill.steps.render import Render
    from gristmill.text.tokenizers.check_tokenizer import TokenizerReport


_SOURCE = "tokenizer"
_CHECK_BYTES = 16 << 20
_MAX_LIBRARY_FILES = 400
_SIZE_FACTORS = {"compressed": 4.0, "parquet": 3.0}
"""How many times its size a file counts. Decides which documents of a large source a tokenizer is trained on, so a
change gives other tokenizers. What a plan prints has separate estimates (`outline`)."""
_MAX_RECORDS = 1000


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
        special_tokens: Tokens that no text can produce. The first one ends documents, unless only another one has a
            name that says so: of `["<|im_start|>", "<|im_end|>"]` the second.
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


class TemplateTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of a template on chats, with the tokens of one of them."""

    report: TemplateReport
    tokens: list[str]
    """The tokens of the first example, as text."""
    trained: list[bool]
    """Which of these tokens are trained on."""
    kinds: list[str]
    """Of which kind each of them is."""


def try_template(render: Render, read: Read, *, max_records: int = _MAX_RECORDS) -> TemplateTrial:
    """Render the first chats of a source, and report what would be trained on.

    Runs in a worker, with limits on time and memory: a template is an untrusted program.
    """
    name = render.template or render.tokenizer or ""
    trial: TemplateTrial = run_with_limits(_try_in_worker, (render, read, max_records), name)
    return trial


def _try_in_worker(arguments: tuple[Render, Read, int]) -> TemplateTrial:
    render, read, max_records = arguments
    step = msgspec.structs.replace(render.resolve("."), is_tokenized=True)
    batches = list(_read_first_batches(read, max_records))
    records = [record for batch in batches for record in decode_records(batch) if isinstance(record, dict)]
    if not records:
        raise UsageError("there are no records to try the template on", help="check the files")
    report = step.check_records(records)
    kernel = step.load()
    assert render.tokenizer is not None
    tokenize = (
        to_chat_form(Tokenize(tokenizer=render.tokenizer, engine=REFERENCE), None, cuts=False).resolve(".").load()
    )
    decoder = load_engine(find_tokenizer(render.tokenizer), REFERENCE, specials_as_text=False)
    for batch in batches:
        encoded = tokenize.apply(kernel.apply(batch, 0).batch, 0).batch
        if encoded.num_rows:
            ids = encoded.column(INPUT_IDS)[0].as_py()
            tokens = split_by_tokens(decoder.decode, ids)
            kinds = [TOKEN_KINDS[kind] for kind in encoded.column(KINDS)[0].as_py()]
            trained = encoded.column(LOSS_MASK)[0].as_py()
            return TemplateTrial(report=report, tokens=tokens, trained=trained, kinds=kinds)
    return TemplateTrial(report=report, tokens=[], trained=[], kinds=[])


def _read_first_batches(read: Read, max_records: int) -> Iterator[pa.RecordBatch]:
    files = choose_training_files(list_source_files("chats", read, find_files(read.read), needs_train=False))
    schema = plan_schema(read, files, keeps_record=True, has_text=False)
    num_left = max_records
    for file in islice(files, max_records):
        for cell in open_reader(read, file, schema).read_cells():
            batch = cell.batch.slice(0, num_left)
            num_left -= batch.num_rows
            if batch.num_rows:
                yield batch
            if num_left <= 0:
                return


_HELD_OUT = 0.1


@dataclass(frozen=True, slots=True)
class ClassifierSummary:
    """The examples of a classifier, and how many of those that were held out it gets right."""

    path: str
    num_good: int
    num_bad: int
    num_held_out: int
    accuracy: float
    """The mean of the shares of good and of bad examples that are on their side of 0.5; NaN if a class has none."""
    num_unreadable: int = 0
    """The records that were left out: damaged, or without a text."""


def train_classifier(
    good: Read, bad: Read, path: str, *, max_documents: int = 100_000, epochs: int = 10
) -> ClassifierSummary:
    """Train a classifier on good and bad texts, and write its file. A tenth of the texts, by their hash, tests it."""
    if Path(path).exists():
        raise UsageError(f"{path} already exists", help="choose another name, or remove it")
    unreadable: list[QuarantinedRecord] = []
    classes = [list(_read_texts(read, max_documents, unreadable)) for read in (good, bad)]
    training, held_out = [], []
    for texts in classes:
        hashes = hash_texts(0, "classifier", pa.array(texts, TEXT_TYPE))
        is_held_out = (hashes < np.uint64(hash_bound(_HELD_OUT))).tolist()
        training.append([text for text, is_test in zip(texts, is_held_out, strict=True) if not is_test])
        held_out.append([text for text, is_test in zip(texts, is_held_out, strict=True) if is_test])
    for read, texts, kept_texts in zip((good, bad), classes, training, strict=True):
        if not kept_texts:
            damage = f", and not {len(unreadable)} records: {unreadable[0].message}" if unreadable else ""
            raise UsageError(
                f"too few examples in {read.read}: {len(texts)} texts can be read{damage}",
                help="give some hundred examples of each class; a tenth of them is held out",
            )
    model = train_model(training[0], training[1], epochs=epochs)
    shares = []
    for texts, is_good in zip(held_out, (True, False), strict=True):
        if texts:
            scores = model.score(pa.array(texts, TEXT_TYPE))
            shares.append(float(np.mean((scores >= 0.5) == is_good)))
    write_file(path, model.to_bytes(), secrets.token_hex(8))
    accuracy = sum(shares) / 2 if len(shares) == 2 else float("nan")
    num_held_out = sum(map(len, held_out))
    return ClassifierSummary(path, len(classes[0]), len(classes[1]), num_held_out, accuracy, len(unreadable))


def _read_texts(read: Read, max_documents: int, unreadable: list[QuarantinedRecord]) -> Iterator[str]:
    """Read the first texts of a source; adds the records among them that cannot be used to `unreadable`."""
    files = choose_training_files(list_source_files("classifier", read, find_files(read.read), needs_train=False))
    schema = plan_schema(read, files, keeps_record=False)
    num_left = max_documents
    for file in files:
        for cell in open_reader(read, file, schema).read_cells():
            unreadable += cell.quarantined
            texts = cell.batch.column(TEXT).to_pylist()[:num_left]
            yield from texts
            num_left -= len(texts)
            if num_left <= 0:
                return
