"""`tokenize` after a `render`: the chat form of the step, in which the template has written all special tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.records import LITERALS, TEXT, TRAINED
from gristmill.steps.tokenize.chat_kernel import TokenizeChatsKernel, add_mask_to_schema
from gristmill.steps.tokenize.resolved_tokenize import ResolvedTokenize
from gristmill.steps.tokenize.tokenize import Tokenize

if TYPE_CHECKING:
    import pyarrow as pa


class TokenizeChats(Tokenize, tag="tokenize", frozen=True, kw_only=True):
    """A `tokenize` that follows a `render`. The plan puts it in the place of `Tokenize`; recipes do not contain it."""

    max_tokens: int | None
    cuts: bool
    """Whether a longer conversation is cut, not dropped."""

    def resolve(self, folder: str) -> ResolvedTokenizeChats:
        """Find the tokenizer and choose an engine for texts in which special tokens are tokens."""
        if self.add_bos:
            raise UsageError("add_bos: the chat template writes the begin of a conversation", help="leave it out")
        plain = Tokenize(tokenizer=self.tokenizer, engine=self.engine, add_eos=False, special_tokens_in_text="token")
        resolved = plain.resolve(folder)
        fields = {name: getattr(resolved, name) for name in ResolvedTokenize.__struct_fields__}
        return ResolvedTokenizeChats(
            **(fields | {"special_tokens_in_text": self.special_tokens_in_text}),
            max_tokens=self.max_tokens,
            cuts=self.cuts,
        )


class ResolvedTokenizeChats(ResolvedTokenize, tag="tokenize", frozen=True, kw_only=True):
    """The chat form of `tokenize` with its tokenizer found: rendered chats become ids and loss masks."""

    needs: ClassVar[tuple[str, ...]] = (TEXT, TRAINED, LITERALS)

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
