"""Facts about a vocabulary, read from a tokenizer's files without an engine.

About 50 ms for 150,000 tokens, once: the plan cache remembers them by the content of the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.errors import UsageError
from gristmill.storage.user_cache.plan_cache import recall, remember
from gristmill.text.tokenizers.files import CONFIG

if TYPE_CHECKING:
    from gristmill.text.tokenizers.files import TokenizerFiles

_USUAL_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>")


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The vocabulary in numbers, and the tokens that have a role."""

    vocab_size: int
    """The largest id + 1, added tokens included."""
    added_tokens: dict[str, int]
    """Tokens that are searched before the text is cut into words."""
    special_tokens: dict[str, int]
    """The control tokens: those that `tokenizer.json` marks as special."""
    eos_id: int | None = None
    bos_id: int | None = None
    pad_id: int | None = None
    eos_token: str | None = None
    eos_by_name: bool = False
    """Whether `tokenizer_config.json` names no end token, and this is the only one with a usual name."""


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any]
    dropout: float | None = None


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] | None = None


def read_facts(files: TokenizerFiles) -> TokenizerFacts:
    """Read the facts from `tokenizer.json`, or recall them."""
    facts = recall("tokenizer-facts", files.content, TokenizerFacts)
    if facts is None:
        facts = _parse_facts(files)
        remember("tokenizer-facts", files.content, facts)
    return facts


def _parse_facts(files: TokenizerFiles) -> TokenizerFacts:
    try:
        tokenizer = msgspec.json.decode(files.read(), type=_Tokenizer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise make_not_a_tokenizer_error(files, error) from error
    if tokenizer.model.dropout:
        raise UsageError(
            f"{files.path} has a dropout of {tokenizer.model.dropout}: the same text would get other ids each time",
            help='write "dropout": null in its model; it is meant for the training of translators',
        )
    added = {token.content: token.id for token in tokenizer.added_tokens or ()}
    special = {token.content: token.id for token in tokenizer.added_tokens or () if token.special}
    vocab = tokenizer.model.vocab
    if isinstance(vocab, list):  # Unigram: pairs of piece and score, in the order of their ids
        largest = len(vocab) - 1
        vocab = {entry[0]: index for index, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    else:
        largest = max(vocab.values(), default=-1)
    ids = {role: _find_id(files, role, token, added, vocab) for role, token in files.roles.items()}
    eos_token, by_name = files.roles.get("eos_token"), False
    usual = [name for name in _USUAL_ENDS if name in special]
    if eos_token is None and len(usual) == 1:
        [eos_token], by_name = usual, True
        ids["eos_token"] = special[eos_token]
    return TokenizerFacts(
        vocab_size=max([largest, *added.values()]) + 1,
        added_tokens=added,
        special_tokens=special,
        eos_id=ids.get("eos_token"),
        bos_id=ids.get("bos_token"),
        pad_id=ids.get("pad_token"),
        eos_token=eos_token,
        eos_by_name=by_name,
    )


def make_not_a_tokenizer_error(files: TokenizerFiles, error: Exception) -> UsageError:
    """Make the error for a file that is damaged, or no tokenizer."""
    return UsageError(
        f"{files.path} cannot be read as a tokenizer: {error}",
        help="it may be cut short or be another kind of file: download it again, or name another",
    )


def _find_id(files: TokenizerFiles, role: str, token: str, added: dict[str, int], vocab: dict[str, int]) -> int:
    token_id = added.get(token, vocab.get(token))
    if token_id is None:
        raise UsageError(
            f"{files.location(CONFIG)} names {token!r} as {role}, but {files.path} has no such token",
            help="name a token of the vocabulary, or remove the line",
        )
    return token_id
