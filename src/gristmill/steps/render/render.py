"""`render` as it is written in recipes."""

from __future__ import annotations

from datetime import date
from typing import Any, ClassVar, Literal

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.step import Step, check_choices
from gristmill.steps.render.chat_image_files import find_images
from gristmill.steps.render.resolved_render import ResolvedRender
from gristmill.storage.installed_versions import find_version
from gristmill.text.chats import (
    CUT,
    DROP_CHAT,
    RESERVED_VARIABLES,
    SPLIT_NEVER,
    ChatOptions,
    LastNotAssistant,
    PromptPolicy,
    Shape,
    SplitTurns,
    TooLong,
    TrainOn,
    find_unknown_tokens,
)
from gristmill.text.chats.find_template import find_template
from gristmill.text.tokenizers import AUTO as CHOSEN
from gristmill.text.tokenizers import TokenizerFiles, choose_engine, find_tokenizer, find_unmarked_controls, read_facts

ToolArguments = Literal["as_given", "object"]


class Render(Step, tag="render", frozen=True, kw_only=True):
    """Turn chats into text with a chat template, and mark what is trained on.

    Records are conversations: OpenAI's `messages`, ShareGPT's `conversations`, Alpaca's `instruction` and `output`, or
    `prompt` and `completion`; set `shape` where it cannot be detected. `template` is a Jinja file or the name of a
    built-in template (`chatml`). Without it, the template of the `tokenizer` is used, which is by default the tokenizer
    of the `tokenize` step that follows. The text is what transformers renders.

    >>> Render(template="chatml", train_on="last_assistant").train_end_of_turn
    True

    With a `tokenize` step after it, the dataset gets a loss mask. `train_on` says what is trained: all answers
    (`assistant`), the last one (`last_assistant`), what records mark with `train: true` or `false` (`marked`), or
    everything (`all`); the end-of-turn token of an answer is trained with it. Without `tokenize`, records are written
    with `text`, `prompt` and `completion`.

    A conversation of more than `max_tokens` (by default those of a packed row) loses its oldest exchanges
    (`too_long: drop_turns`), becomes several examples with each answer in one of them (`windows`), is dropped (`drop`)
    or cut (`cut`). If a template renders an answer in the history differently from a last answer, each answer becomes
    an example of its own (`split_turns: auto`).

    Prompts of reasoning models often end with `<think>`, which rendered answers do not have. `prompt: as_rendered`
    uses the text that transformers renders and trains the answer from where the two differ; `as_prompted` puts the
    answer behind the prompt, as the model will see it; `refuse` drops such conversations as `prompt_differs`.

    `keep: messages` is for chats to be filtered and deduplicated by their text, and written as chats: the steps that
    follow see the text, and `write` writes the records as they were read.
    """

    runs_template: ClassVar[bool] = True

    template: str | None = None
    tokenizer: str | None = None
    shape: Shape = "auto"
    train_on: TrainOn = "assistant"
    train_end_of_turn: bool = True
    append_eos: bool = False
    """Whether to add the tokenizer's end token to a last answer that does not end with it, and train it."""
    last_not_assistant: LastNotAssistant = "drop"
    """What to do with a conversation that does not end with an answer: `drop`, `keep`, or `trim` to its last answer."""
    split_turns: SplitTurns = "auto"
    max_tokens: int | None = None
    too_long: TooLong = "drop_turns"
    date: str | None = None
    """The date for templates that ask for today's, such as `2026-01-31`."""
    prompt: PromptPolicy = "as_rendered"
    """What to do if the rendering of an answer does not begin with its prompt: use it `as_rendered`, build it
    `as_prompted`, or `refuse` it."""
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    """Variables of the template for every record (`enable_thinking: false`), unless the record sets them itself."""
    keep: Literal["messages"] | None = None
    """`messages`: write the chat as it was read. Its `text` and, with a tokenizer, `num_tokens` are columns for the
    steps in between."""
    tool_arguments: ToolArguments | None = None
    """Arguments of tool calls that are JSON in a string: pass them `as_given`, or as an `object` for templates that
    write the JSON themselves."""
    images: str | None = None
    """A folder of images, or tars of them, that conversations refer to by name. Rows keep the references."""
    image_tokens: str | int | None = None
    """How many tokens an image has: the rule of a family (`qwen2_vl`, `qwen2_5_vl`, `llava`, `gemma3`) or a number. By
    default the family that the processor's files beside the tokenizer name."""
    image_token: str | None = None
    """With a number of `image_tokens`: the special token that is repeated, by default `<image>`."""
    trace: Literal["auto", "off"] = "auto"
    """Whether the template is traced: run once for each kind of conversation, not for each record. The texts are the
    same, and some are compared with Jinja's in every run; `off` runs Jinja for each record."""

    def __post_init__(self) -> None:
        check_choices(type(self), msgspec.structs.asdict(self))
        reserved = [name for name in self.chat_template_kwargs if name in RESERVED_VARIABLES]
        if reserved:
            raise UsageError(f"chat_template_kwargs: {reserved[0]} cannot be set", help="it comes from the records")
        if self.keep is not None and self.max_tokens is not None and self.too_long != DROP_CHAT:
            raise UsageError(
                f"render: with keep: {self.keep} chats are written whole, so one that is too long can only be dropped",
                help="add too_long: drop",
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.date is not None:
            _parse_date(self.date)
        if self.images is None and (self.image_tokens is not None or self.image_token is not None):
            raise UsageError("image_tokens: without images there is nothing to count", help="name them: `images: …`")
        if self.images is not None and self.too_long == CUT:
            raise UsageError(
                "render: chats with images cannot be cut", help="use too_long: drop_turns, windows or drop"
            )

    def resolve(self, folder: str) -> ResolvedRender:
        """Find the template. Only workers compile it: Jinja computes constants while it compiles, perhaps forever."""
        files = find_tokenizer(self.tokenizer, folder) if self.tokenizer is not None else None
        template = find_template(self.template, files, folder)
        if self.date is None and any("strftime_now" in source for source in template.sources.values()):
            raise UsageError(
                f"render: the template of {template.name} asks for today's date, so the same chats would give other "
                "bytes tomorrow",
                help="set the day: date: 2026-01-31",
            )
        if self.max_tokens is not None and files is None:
            raise UsageError("max_tokens: tokens can only be counted with a tokenizer", help="name one: tokenizer: …")
        if self.append_eos and not template.variables.get("eos_token"):
            raise UsageError(
                "append_eos: no tokenizer names its end token",
                help='name one whose tokenizer_config.json has an "eos_token"',
            )
        options = ChatOptions(
            shape=self.shape,
            train_on=self.train_on,
            train_end_of_turn=self.train_end_of_turn,
            last_not_assistant=self.last_not_assistant,
            split_turns=self.split_turns if self.keep is None else SPLIT_NEVER,
            max_tokens=self.max_tokens,
            too_long=self.too_long,
            parse_arguments=self.tool_arguments == "object",
            accepts_quoted_arguments=self.tool_arguments == "as_given",
            append_eos=self.append_eos,
            prompt=self.prompt,
            template_variables=self.chat_template_kwargs,
        )
        facts = read_facts(files) if files is not None else None
        rule, table = None, None
        if self.images is not None:
            rule, table = find_images(self.images, self.image_tokens, self.image_token, files, folder)
        return ResolvedRender(
            template=template,
            options=options,
            today=_parse_date(self.date) if self.date is not None else None,
            files=files,
            special_tokens=facts.special_tokens if facts is not None else {},
            control_tokens=tuple(find_unmarked_controls(facts)) if facts is not None else (),
            unknown_tokens=find_unknown_tokens(files, facts.added_tokens)
            if files is not None and facts is not None
            else (),
            engine=self._load_counting_engine(files),
            keeps_chat=self.keep is not None,
            renderer=f"jinja2 {find_version('jinja2')}",
            trace=self.trace != "off",
            image_rule=rule,
            image_table=table,
            image_content=table.content if table is not None else "",
        )

    def _load_counting_engine(self, files: TokenizerFiles | None) -> str:
        if (self.max_tokens is None and self.keep is None) or files is None:
            return ""
        return choose_engine(files, CHOSEN, specials_as_text=False).engine


def _parse_date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"date: {text!r} is not a day", help="write it as 2026-01-31") from None
