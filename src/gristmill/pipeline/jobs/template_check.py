"""A chat template tried on chats, before a run depends on it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.pipeline.planning.trial import run_with_limits
from gristmill.steps.read import choose_training_files, list_source_files, open_reader, plan_schema
from gristmill.steps.records.record_functions import decode_records
from gristmill.steps.tokenize import Tokenize
from gristmill.steps.tokenize.tokenize_chats import to_chat_form
from gristmill.storage.listing.paths import find_files
from gristmill.text.chats import TemplateReport  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.text.tokenizers import REFERENCE, find_tokenizer, load_engine, split_by_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from gristmill.steps.read import Read
    from gristmill.steps.render import Render

_MAX_RECORDS = 1000


class TemplateTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of a template on chats, with the tokens of one of them."""

    report: TemplateReport
    tokens: list[str]
    """The tokens of the first example, as text."""
    trained: list[bool]
    """Which of these tokens are trained on."""


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
            return TemplateTrial(report=report, tokens=tokens, trained=encoded.column(LOSS_MASK)[0].as_py())
    return TemplateTrial(report=report, tokens=[], trained=[])


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
