"""`tokenize` as it is written in recipes."""

from __future__ import annotations

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.core.step import Step, check_choices
from gristmill.steps.tokenize.kernel import AS_TOKEN, LiteralPolicy
from gristmill.steps.tokenize.resolved_tokenize import ResolvedTokenize
from gristmill.text.tokenizers import AUTO, ENGINES, choose_engine, find_tokenizer, read_facts


class Tokenize(Step, tag="tokenize", frozen=True, kw_only=True):
    """Turn each document's text into token ids; the text and all other columns are dropped.

    `tokenizer` is a folder with `tokenizer.json`, such a file, or a name on the Hugging Face Hub. Ids are those of the
    reference (`tokenizers`), whatever the engine: `auto` chooses the fast one where tests show it to be equal. The
    tokenizer's post-processor is not run: with `add_eos` a document gets the end token, and never two of them.

    >>> Tokenize(tokenizer="tokenizers/gpt2").add_eos
    True

    A special token that is written out in a text is a risk: text from the web could end a document, or begin a chat.
    `special_tokens_in_text` says how to treat it: `text` (its letters are encoded like any others), `token`, or
    `reject` (the document is dropped as `special_token`). They are counted in each case.
    """

    tokenizer: str
    engine: str = AUTO
    add_eos: bool = True
    add_bos: bool = False
    special_tokens_in_text: LiteralPolicy = "text"

    def __post_init__(self) -> None:
        if not self.tokenizer:
            raise UsageError("tokenizer must be a folder, a file or a name on the Hugging Face Hub")
        check_choice("engine", self.engine, [AUTO, *ENGINES])  # a table, not a type: engines may be added
        check_choices(type(self), msgspec.structs.asdict(self))

    def resolve(self, folder: str) -> ResolvedTokenize:
        """Find the tokenizer, try it, and choose an engine. Takes 1 to 3 s."""
        files = find_tokenizer(self.tokenizer, folder)
        choice = choose_engine(files, self.engine, specials_as_text=self.special_tokens_in_text != AS_TOKEN)
        facts = read_facts(files)
        for role, token_id, is_requested in (("eos", facts.eos_id, self.add_eos), ("bos", facts.bos_id, self.add_bos)):
            if is_requested and token_id is None:
                raise UsageError(
                    f"add_{role}: {files.path} does not name that token",
                    help=f'name it in tokenizer_config.json beside it ("{role}_token": "…"), or set add_{role}: false',
                )
        return ResolvedTokenize(
            tokenizer=self.tokenizer,
            files=files,
            choice=choice,
            engine_asked=self.engine,
            add_eos=self.add_eos,
            add_bos=self.add_bos,
            special_tokens_in_text=self.special_tokens_in_text,
            vocab_size=facts.vocab_size,
            eos_id=facts.eos_id,
            bos_id=facts.bos_id,
            pad_id=facts.pad_id,
            eos_token=facts.eos_token,
            eos_by_name=facts.eos_by_name,
        )
