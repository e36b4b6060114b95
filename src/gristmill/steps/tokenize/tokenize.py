"""`tokenize` as recipes write it, its form after a `render`, and the resolved step of a plan.

After a `render` the template has written all special tokens. In the resolved step nothing is left to look up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

import msgspec

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.core.records import KINDS, LITERALS, TEXT, TEXT_TYPE
from gristmill.core.step import LocalStep, Step, StepTraits, check_choices
from gristmill.shards.manifest_file import SnapshotFile, TokenizerSnapshot
from gristmill.shards.stored_files import TokenizerIdentity
from gristmill.steps.tokenize.chat_kernel import TokenizeChatsKernel, add_mask_to_schema
from gristmill.steps.tokenize.text_kernel import AS_TOKEN, LiteralPolicy, TokenizeKernel, token_schema
from gristmill.text.tokenizers.check_tokenizer import id_type
from gristmill.text.tokenizers.choose import AUTO, EngineChoice, choose_engine, confirm_on_sample
from gristmill.text.tokenizers.engine import ENGINES
from gristmill.text.tokenizers.files import TokenizerFiles, find_tokenizer, read_facts

if TYPE_CHECKING:
    import pyarrow as pa

    from gristmill.core.records import StepResult
    from gristmill.core.step import StepKernel


class Tokenize(Step, tag="tokenize", frozen=True, kw_only=True):
    """Turn each document's text into token ids; the text and all other columns are dropped.

    `tokenizer` is a folder with `tokenizer.json`, such a file, or a name on the Hugging Face Hub. Ids are those of the
    reference (`tokenizers`) with every engine: `auto` chooses the fast one where tests show it to be equal. The
    tokenizer's post-processor is not run: with `add_eos` a document gets the end token, and never two of them.

    >>> Tokenize(tokenizer="tokenizers/gpt2").add_eos
    True

    A special token that is written out in a text is a risk: text from the web could end a document, or begin a chat.
    `special_tokens_in_text` says how to treat it: `text` (its letters are encoded like any others), `token`, or
    `reject` (the document is dropped as `special_token`). They are counted in each case.

    [Tokenizing](tokenizing.md) has the details.
    """

    tokenizer: str
    """A folder with `tokenizer.json`, such a file, or a name on the Hugging Face Hub."""
    engine: str = AUTO
    """`tokenizers` (the reference), `fastokens`, or `auto`: the fast one where it is proved to give the same ids."""
    add_eos: bool = True
    """Whether each document ends with the tokenizer's end token."""
    add_bos: bool = False
    """The same for the begin token."""
    end_token: str | None = None
    """Another special token that ends documents, such as `<|endoftext|>`. None: the tokenizer's end token, which is
    often the end of a turn in tokenizers of chat models.
    """
    begin_token: str | None = None
    """A special token that begins documents, in place of the tokenizer's begin token; it needs no `add_bos`."""
    special_tokens_in_text: LiteralPolicy = "text"
    """A special token that is written in a text: plain `text`, the `token`, or a reason to `reject` the document."""

    def __post_init__(self) -> None:
        if not self.tokenizer:
            raise UsageError("tokenizer must be a folder, a file or a name on the Hugging Face Hub")
        check_choice("engine", self.engine, [AUTO, *ENGINES])  # a table, not a type: engines may be added
        check_choices(type(self), msgspec.structs.asdict(self))
        if self.end_token is not None and not self.add_eos:
            raise UsageError("end_token names the token that add_eos: false leaves out", help="leave one of them out")

    def resolve(self, folder: str) -> ResolvedTokenize:
        """Find the tokenizer, try it, and choose an engine. Takes 1 to 3 s."""
        files = find_tokenizer(self.tokenizer, folder)
        choice = choose_engine(files, self.engine, specials_as_text=self.special_tokens_in_text != AS_TOKEN)
        facts = read_facts(files)
        eos_id = self._find_token("end_token", self.end_token, facts.special_tokens, facts.eos_id)
        bos_id = self._find_token("begin_token", self.begin_token, facts.special_tokens, facts.bos_id)
        adds_bos = self.add_bos or self.begin_token is not None
        for key, role, token_id, is_requested in (
            ("end_token", "eos", eos_id, self.add_eos),
            ("begin_token", "bos", bos_id, adds_bos),
        ):
            if is_requested and token_id is None:
                raise UsageError(
                    f"add_{role}: {files.path} does not name that token",
                    help=f'name it as {key}, or in tokenizer_config.json next to it ("{role}_token": "…"), or set '
                    f"add_{role}: false",
                )
        return ResolvedTokenize(
            tokenizer=self.tokenizer,
            files=files,
            choice=choice,
            engine_asked=self.engine,
            add_eos=self.add_eos,
            add_bos=adds_bos,
            special_tokens_in_text=self.special_tokens_in_text,
            vocab_size=facts.vocab_size,
            eos_id=eos_id,
            bos_id=bos_id,
            pad_id=facts.pad_id,
            eos_token=self.end_token or facts.eos_token,
            eos_by_name=self.end_token is None and facts.eos_by_name,
        )

    def _find_token(self, key: str, token: str | None, special_tokens: dict[str, int], usual: int | None) -> int | None:
        """Find the id of a named special token; that of the tokenizer if none is named."""
        if token is not None:
            check_choice(key, token, list(special_tokens))  # a token of letters would also be written in texts
            return special_tokens[token]
        return usual


class TokenizeChats(Tokenize, tag="tokenize", frozen=True, kw_only=True):
    """A `tokenize` that follows a `render`. The plan puts it in the place of `Tokenize`; recipes do not contain it."""

    max_tokens: int | None
    cuts: bool
    """Whether a longer conversation is cut, not dropped."""

    def resolve(self, folder: str) -> ResolvedTokenizeChats:
        """Find the tokenizer and choose an engine for texts in which special tokens are tokens."""
        for key in ("add_bos", "begin_token", "end_token"):
            if getattr(self, key):
                raise UsageError(
                    f"{key}: the chat template writes begin and end of a conversation", help="leave it out"
                )
        plain = Tokenize(tokenizer=self.tokenizer, engine=self.engine, add_eos=False, special_tokens_in_text="token")
        resolved = plain.resolve(folder)
        fields = {name: getattr(resolved, name) for name in ResolvedTokenize.__struct_fields__}
        return ResolvedTokenizeChats(
            **(fields | {"special_tokens_in_text": self.special_tokens_in_text}),
            max_tokens=self.max_tokens,
            cuts=self.cuts,
        )


class ResolvedTokenize(LocalStep, tag="tokenize", frozen=True, kw_only=True):
    """The step `tokenize` with its tokenizer found and its engine chosen."""

    needs: ClassVar[tuple[str, ...]] = (TEXT,)
    traits: ClassVar[StepTraits] = StepTraits(selects_columns=True)
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


class ResolvedTokenizeChats(ResolvedTokenize, tag="tokenize", frozen=True, kw_only=True):
    """The chat form of `tokenize` with its tokenizer found: rendered chats become ids and loss masks."""

    needs: ClassVar[tuple[str, ...]] = (TEXT, KINDS, LITERALS)

    max_tokens: int | None
    cuts: bool
    image_token: str | None = None
    """The token that is repeated for each image, if chats have images."""

    @property
    def specials_as_text(self) -> bool:
        return False

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return add_mask_to_schema(schema, self.vocab_size)

    def load(self) -> TokenizeChatsKernel:
        return TokenizeChatsKernel(
            self.files,
            self.engine,
            self.special_tokens_in_text,
            vocab_size=self.vocab_size,
            max_tokens=self.max_tokens,
            cuts=self.cuts,
            image_token=self.image_token,
        )

    def notes(self) -> list[str]:
        [tokenizer, engine] = super().notes()
        return [tokenizer.removesuffix("no end token") + "the template writes begin and end", engine]


def to_chat_form(tokenize: Tokenize, max_tokens: int | None, *, cuts: bool) -> TokenizeChats:
    """Return the chat form of a `tokenize` step."""
    return TokenizeChats(**msgspec.structs.asdict(tokenize), max_tokens=max_tokens, cuts=cuts)


_ENGINES_BYTES = 32 << 20
_TOKEN_BYTES = 1170
"""What a token of the vocabulary takes in both engines, with its merges."""
