"""A chat template tried on chats, before a run depends on it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.pipeline.trial import run_limited
from gristmill.steps.read import open_reader, plan_schema, source_files, training_files
from gristmill.steps.record_functions import each_record
from gristmill.steps.tokenize import Tokenize
from gristmill.steps.tokenize.encode_chats import for_chats
from gristmill.storage.paths import find_files
from gristmill.text.chats import TemplateReport  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.text.tokenizers import REFERENCE, find_tokenizer, load_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from gristmill.steps.read import Read
    from gristmill.steps.render import Render

_MAX_RECORDS = 1000


class CheckedTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """What a template does to chats, and to one of them in full."""

    report: TemplateReport
    tokens: list[str]
    """Of the first example, as text."""
    trained: list[bool]


def check_chats(render: Render, read: Read, *, max_records: int = _MAX_RECORDS) -> CheckedTemplate:
    """Render the first chats of a source and say what would be trained on.

    In a worker with limits of time and memory: a template is a program that came from elsewhere.
    """
    name = render.template or render.tokenizer or ""
    checked: CheckedTemplate = run_limited(_check, (render, read, max_records), name)
    return checked


def _check(arguments: tuple[Render, Read, int]) -> CheckedTemplate:
    render, read, max_records = arguments
    step = msgspec.structs.replace(render.resolved("."), is_tokenized=True)
    batches = list(_first_batches(read, max_records))
    records = [record for batch in batches for record in each_record(batch) if isinstance(record, dict)]
    if not records:
        raise UsageError("there are no records to try the template on", help="check the files")
    report = step.checked(records)
    kernel = step.load()
    assert render.tokenizer is not None
    tokenize = for_chats(Tokenize(tokenizer=render.tokenizer, engine=REFERENCE), None, cuts=False).resolved(".").load()
    decoder = load_engine(find_tokenizer(render.tokenizer), REFERENCE, specials_as_text=False)
    for batch in batches:
        encoded = tokenize.apply(kernel.apply(batch, 0).batch, 0).batch
        if encoded.num_rows:
            ids = encoded.column(INPUT_IDS)[0].as_py()
            tokens = [decoder.decode([number]) for number in ids]
            return CheckedTemplate(report=report, tokens=tokens, trained=encoded.column(LOSS_MASK)[0].as_py())
    return CheckedTemplate(report=report, tokens=[], trained=[])


def _first_batches(read: Read, max_records: int) -> Iterator[pa.RecordBatch]:
    files = training_files(source_files("chats", read, find_files(read.read), needs_train=False))
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
