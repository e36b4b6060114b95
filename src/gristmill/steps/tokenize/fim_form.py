"""The form of `tokenize` that follows a `fim`: parts of a document are encoded alone, with special tokens between them.

Special tokens are added as ids, so nothing that is written in a document can be one of them. A tokenizer that begins a
text with a space of its own (Llama's) would put one into the middle of a document: there, parts are encoded after a
mark, whose ids are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import FIM, ORIGIN, TEXT, QuarantinedRecord, Texts
from gristmill.steps.fim import Fim
from gristmill.steps.tokenize.text_kernel import AS_TOKEN, TokenizeKernel, find_quarantined
from gristmill.steps.tokenize.tokenize import ResolvedTokenize, Tokenize
from gristmill.text.tokenizers.files import read_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gristmill.core.step import Step

_MARK = "\x02"
"""A character that no word begins with: such tokenizers write it as a byte, which joins nothing."""


def link_fim(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Link the `fim` and `tokenize` of a source.

    Raises:
        UsageError: There is no `tokenize` after `fim`, or a step between them changes the text.
    """
    linked = list(steps)
    for index, step in enumerate(steps):
        if not isinstance(step, Fim):
            continue
        following = next((place for place in range(index + 1, len(steps)) if isinstance(steps[place], Tokenize)), None)
        if any(other.name == "render" for other in steps):
            raise UsageError("fim: documents are cut, not chats", help="leave out fim, or render")
        if following is None:
            raise UsageError("fim: only tokens have an order of parts", help="add a tokenize step after it")
        changing = [between.name for between in steps[index + 1 : following] if not between.preserves_text]
        if changing:
            raise UsageError(
                f"fim: {changing[0]} changes the text after it was cut", help=f"put {changing[0]} before fim"
            )
        tokenize = steps[following]
        assert isinstance(tokenize, Tokenize)
        if tokenize.special_tokens_in_text == AS_TOKEN:
            raise UsageError(
                "fim: with special_tokens_in_text: token a document could hold the tokens that fim adds",
                help="leave special_tokens_in_text out, or set it to reject",
            )
        linked[following] = TokenizeFim(**msgspec.structs.asdict(tokenize), fim=step)
    return tuple(linked)


class TokenizeFim(Tokenize, tag="tokenize", frozen=True, kw_only=True):
    """A `tokenize` that follows a `fim`. The plan puts it in the place of `Tokenize`; recipes do not contain it."""

    fim: Fim

    def resolve(self, folder: str) -> ResolvedTokenizeFim:
        """Find the tokenizer, and in it the special tokens of parts."""
        fields = {name: value for name, value in msgspec.structs.asdict(self).items() if name != "fim"}
        resolved = Tokenize(**fields).resolve(folder)
        tokens = self.fim.find_tokens(read_facts(resolved.files).added_tokens, self.tokenizer)
        fim_form = ResolvedTokenizeFim(
            **{name: getattr(resolved, name) for name in ResolvedTokenize.__struct_fields__}, fim_ids=tokens
        )
        fim_form.load()  # refuses a tokenizer that cannot encode parts alone
        return fim_form


class ResolvedTokenizeFim(ResolvedTokenize, tag="tokenize", frozen=True, kw_only=True):
    """The form of `tokenize` for documents with cuts, with its tokenizer found."""

    needs: ClassVar[tuple[str, ...]] = (TEXT, FIM)

    fim_ids: tuple[int, ...]
    """The tokens before prefix, suffix and middle, and that after the middle if there is one."""

    def load(self) -> FimKernel:
        return FimKernel(
            self.files,
            self.engine,
            self.special_tokens_in_text,
            vocab_size=self.vocab_size,
            begin=self.bos_id if self.add_bos else None,
            end=self.eos_id if self.add_eos else None,
            fim_ids=self.fim_ids,
        )

    def notes(self) -> list[str]:
        names = {number: token for token, number in read_facts(self.files).added_tokens.items()}
        shown = ", ".join(names[number] for number in self.fim_ids)
        return [*super().notes(), f"fim: parts begin with {shown}"]


class FimKernel(TokenizeKernel):
    """Encodes documents, and the parts of those with cuts."""

    def __init__(self, *arguments: Any, fim_ids: tuple[int, ...], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._fim_ids = [np.array([number], np.uint32) for number in fim_ids]
        self._num_mark_ids = 0
        """How many ids the mark before a part has; 0: parts need no mark."""
        self._parts: tuple[pa.RecordBatch, Texts, NDArray[np.uint32], NDArray[np.int64]] | None = None
        self._choose_mark()

    def _choose_mark(self) -> None:
        [alone, after_mark, mark] = [self._engine.encode([text])[0].tolist() for text in ("x", f"{_MARK}x", _MARK)]
        if after_mark == [*mark, *alone]:
            return
        for part in ("x", " x", "\n\n", "  "):
            if self._engine.encode([_MARK + part])[0].tolist()[: len(mark)] != mark:
                raise UsageError(
                    f"fim: {self._files.path} encodes the beginning of a text differently, so documents cannot be cut",
                    help="use a byte-level tokenizer, as models for code have",
                )
        self._num_mark_ids = len(mark)

    def _encode(
        self, batch: pa.RecordBatch, texts: Texts
    ) -> tuple[pa.RecordBatch, Texts, NDArray[np.uint32], NDArray[np.int64], list[QuarantinedRecord]]:
        cuts: list[list[int]] = batch.column(FIM).to_pylist()
        mark = _MARK if self._num_mark_ids else ""
        parts: list[str] = []
        for text, cut in zip(texts.strings, cuts, strict=True):
            if cut:
                begin, end, _ = cut
                parts += [text[:begin], mark + text[begin:end], mark + text[end:]]
            else:
                parts.append(text)
        sizes = np.array([3 if cut else 1 for cut in cuts], np.int64)
        owners = np.repeat(np.arange(len(cuts)), sizes)
        part_batch = pa.RecordBatch.from_arrays([batch.column(ORIGIN).take(pa.array(owners))], [ORIGIN])
        part_batch, part_texts, ids, offsets, bad_parts = super()._encode(part_batch, Texts(parts))
        self._parts = part_batch, part_texts, ids, offsets
        quarantined: list[QuarantinedRecord] = []
        if bad_parts:
            is_bad = find_quarantined(batch, bad_parts)
            bad_rows = np.flatnonzero(is_bad).tolist()
            by_origin = {(bad.file, bad.position, bad.part): bad for bad in bad_parts}
            for row in bad_rows:
                bad = by_origin[tuple(batch.column(ORIGIN)[row].as_py().values())]
                quarantined.append(replace(bad, raw=texts.strings[row].encode()))
            cuts = [cut for cut, is_bad_row in zip(cuts, is_bad.tolist(), strict=True) if not is_bad_row]
            batch, texts = batch.filter(pa.array(~is_bad)), texts.filter(~is_bad)
        return batch, texts, *self._join(cuts, ids, offsets), quarantined

    def _check_parity(
        self,
        batch: pa.RecordBatch,
        texts: Texts,
        ids: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        seed: int,
    ) -> int:
        """Compare parts, as they were encoded."""
        del batch, texts, ids, offsets
        assert self._parts is not None
        return super()._check_parity(*self._parts, seed)

    def _join(
        self, cuts: list[list[int]], ids: NDArray[np.uint32], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Put the parts of documents in order."""
        before_prefix, before_suffix, before_middle, *after = self._fim_ids
        pieces: list[NDArray[np.uint32]] = [np.empty(0, np.uint32)]
        new_offsets = np.zeros(len(cuts) + 1, np.int64)
        part, total = 0, 0
        for document, cut in enumerate(cuts):
            if not cut:
                document_ids = [ids[offsets[part] : offsets[part + 1]]]
                part += 1
            else:
                skipped = self._num_mark_ids
                prefix = ids[offsets[part] : offsets[part + 1]]
                middle = ids[offsets[part + 1] + skipped : offsets[part + 2]]
                suffix = ids[offsets[part + 2] + skipped : offsets[part + 3]]
                if cut[2]:
                    document_ids = [before_prefix, before_suffix, suffix, before_middle, prefix, middle, *after]
                else:
                    document_ids = [before_prefix, prefix, before_suffix, suffix, before_middle, middle, *after]
                part += 3
            pieces += document_ids
            total += sum(map(len, document_ids))
            new_offsets[document + 1] = total
        return np.concatenate(pieces), new_offsets
