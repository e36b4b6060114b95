"""`tokenize` after planning: nothing is left to look up or to choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT, TEXT_TYPE
from gristmill.core.step import LocalStep
from gristmill.shards.manifests.stored_files import TokenizerIdentity
from gristmill.shards.tokenizer_snapshot import SnapshotFile, TokenizerSnapshot
from gristmill.steps.tokenize.kernel import AS_TOKEN, TokenizeKernel, token_schema
from gristmill.text.tokenizers import EngineChoice, TokenizerFiles, confirm_on_sample, id_type

if TYPE_CHECKING:
    import pyarrow as pa

    from gristmill.core.records import StepResult
    from gristmill.core.step import StepKernel

_ENGINES_BYTES = 32 << 20
_TOKEN_BYTES = 1170
"""What a token of the vocabulary takes in both engines, with its merges."""


class ResolvedTokenize(LocalStep, tag="tokenize", frozen=True, kw_only=True):
    """The step `tokenize` with its tokenizer found and its engine chosen."""

    needs: ClassVar[tuple[str, ...]] = (TEXT,)
    selects_columns: ClassVar[bool] = True
    # Ids depend on the content of the files, not on where they are: `content` is fingerprinted. Of the choice, `engine`
    # and `engine_version` are.
    not_fingerprinted: ClassVar[tuple[str, ...]] = (
        "tokenizer",
        "files",
        "choice",
        "engine_asked",
        "eos_token",
        "eos_by_name",
    )

    tokenizer: str
    files: TokenizerFiles
    choice: EngineChoice
    engine_asked: str
    add_eos: bool
    add_bos: bool
    special_tokens_in_text: str
    vocab_size: int
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    eos_token: str | None = None
    eos_by_name: bool = False
    content: str = ""
    engine: str = ""
    engine_version: str = ""

    def __post_init__(self) -> None:
        for name, value in (
            ("content", self.files.content),
            ("engine", self.choice.engine),
            ("engine_version", self.choice.version),
        ):
            msgspec.structs.force_setattr(self, name, value)

    @property
    def loaded_content(self) -> tuple[str, ...]:
        return (self.content,)

    def expected_bytes(self, slice_bytes: int) -> int:  # noqa: ARG002
        return _ENGINES_BYTES + _TOKEN_BYTES * self.vocab_size

    @property
    def specials_as_text(self) -> bool:
        return self.special_tokens_in_text != AS_TOKEN

    @property
    def id_type(self) -> str:
        """The smallest type that holds all ids."""
        return id_type(self.vocab_size)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if TEXT not in schema.names or schema.field(TEXT).type != TEXT_TYPE:
            raise UsageError("tokenize needs the text", help="put it before the step that drops the text")
        return token_schema(schema, self.vocab_size)

    def adapt_to_sample(self, sample: pa.RecordBatch) -> Self:
        """Choose the reference if the fast engine gives other ids for these records."""
        texts = sample.column(TEXT).to_pylist()
        choice = confirm_on_sample(self.files, self.choice, texts, specials_as_text=self.specials_as_text)
        if choice.engine != self.choice.engine and self.engine_asked == self.choice.engine:
            raise UsageError(f"tokenize: {choice.why}", help="use engine: auto, which then uses the reference")
        return msgspec.structs.replace(self, choice=choice)

    def load(self) -> StepKernel:
        return TokenizeKernel(
            self.files,
            self.engine,
            self.special_tokens_in_text,
            vocab_size=self.vocab_size,
            begin=self.bos_id if self.add_bos else None,
            end=self.eos_id if self.add_eos else None,
        )

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        """Apply the step once, for tests and trials: this loads the engine. A run calls `load` once a worker."""
        return self.load().apply(batch, seed)

    def notes(self) -> list[str]:
        """Describe the tokenizer and the engine, for the plan."""
        ends = "no end token" if not self.add_eos else f"documents end with {self.eos_token} ({self.eos_id})"
        if self.add_eos and self.eos_by_name:
            ends += ", found by its usual name: no tokenizer_config.json names it"
        choice = self.choice
        proof = f" on {choice.num_texts} adversarial texts" if choice.num_texts else ""
        if choice.num_records:
            proof += f" and {choice.num_records} of the records"
        return [
            f"tokenizer {self.tokenizer}: {self.vocab_size:,} tokens, ids as {self.id_type}, {ends}",
            f"engine {choice.engine} {choice.version}: {choice.why}{proof}",
        ]

    def make_snapshot(self) -> TokenizerSnapshot:
        """Make the dataset's copy of the tokenizer, with the engine that was used."""
        choice = self.choice
        identity = TokenizerIdentity(
            name=self.tokenizer,
            content=self.content,
            files=[],
            vocab_size=self.vocab_size,
            eos_id=self.eos_id,
            bos_id=self.bos_id,
            pad_id=self.pad_id,
            engine=choice.engine,
            engine_version=choice.version,
            why=choice.why,
            parity={"adversarial_texts": choice.num_texts, "records": choice.num_records},
        )
        files = {name: SnapshotFile(str(self.files.location(name)), xxh3) for name, xxh3 in self.files.files.items()}
        return TokenizerSnapshot(identity, files)
