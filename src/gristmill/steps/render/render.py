"""`render`: the step as it is written in recipes, and after planning, when nothing is left to look up."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import (
    BESIDE_RECORD,
    IMAGES,
    IMAGES_TYPE,
    KINDS,
    LITERALS,
    NUM_TOKENS,
    ORIGIN,
    RECORD,
    SPLIT,
    TEXT,
    TEXT_TYPE,
    WEIGHTS,
)
from gristmill.core.step import LocalStep, Step, StepTraits, check_choices
from gristmill.core.token_kinds import check_kinds
from gristmill.images.image_files import ImageTable  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.images.image_tokens import ImageRule  # noqa: TC001
from gristmill.steps.column_names import list_value_columns
from gristmill.steps.record_functions import decode_records
from gristmill.steps.render.example_rows import COMPLETION, PROMPT, find_images, make_chat_images, refer_to_images
from gristmill.steps.render.render_kernel import RenderKernel
from gristmill.text.chats.check_template import TemplateReport, check_template
from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.jinja_environment import TemplateLimits, TemplateTimeout
from gristmill.text.chats.options import (
    CUT,
    DROP_CHAT,
    SPLIT_NEVER,
    WINDOWS,
    ChatOptions,
    LastNotAssistant,
    PromptPolicy,
    SplitTurns,
    TooLong,
    TrainOn,
)
from gristmill.text.chats.shapes import CHAT_PARTS, RESERVED_VARIABLES, Shape
from gristmill.text.chats.templates import (
    BUILT_IN,
    FoundTemplate,
    find_control_tokens,
    find_template,
    find_unknown_tokens,
)
from gristmill.text.tokenizers.choose import AUTO as CHOSEN
from gristmill.text.tokenizers.choose import choose_engine
from gristmill.text.tokenizers.engine import REFERENCE, load_engine
from gristmill.text.tokenizers.files import TokenizerFiles, find_tokenizer, read_facts
from gristmill.text.tokenizers.special_tokens import find_unmarked_controls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.core.records import StepResult
    from gristmill.text.chats.chat_images import ChatImages


ToolArguments = Literal["as_given", "object"]


class Render(Step, tag="render", frozen=True, kw_only=True):
    """Turn chats into text with a chat template, and mark what is trained on.

    Records are conversations: OpenAI's `messages`, ShareGPT's `conversations`, Alpaca's `instruction` and `output`, or
    `prompt` and `completion`; set `shape` where it cannot be detected, and `fields` where the keys have other names:
    `{prompt: question, response: answer}`. `template` is a Jinja file or the name of a
    built-in template (`chatml`). Without it, the template of the `tokenizer` is used, which is by default the tokenizer
    of the `tokenize` step that follows. The text is what transformers renders.

    >>> Render(template="chatml", train_on="last_assistant").train_end_of_turn
    True

    With a `tokenize` step after it, the dataset gets a loss mask. `train_on` says what is trained: all answers
    except those inside a prompt that has a completion (`auto`), all answers (`assistant`), the last one
    (`last_assistant`), what records mark with `train: true` or `false` (`marked`), or everything (`all`); the
    end-of-turn token of an answer is trained with it. Without `tokenize`, records are written with `text`, `prompt` and
    `completion`.

    A conversation of more than `max_tokens` (by default those of a packed row) loses its oldest exchanges
    (`too_long: drop_turns`), becomes several examples with each answer in one of them (`windows`, or `turn_windows`
    for sessions of agents, whose exchanges are long themselves), is dropped (`drop`) or cut (`cut`). If a template
    renders an answer in the history differently from a last answer, each answer becomes a separate example
    (`split_turns: auto`).

    Prompts of reasoning models often end with `<think>`, which rendered answers do not have. `prompt: as_rendered`
    uses the text that transformers renders and trains the answer from where the two differ; `as_prompted` puts the
    answer after the prompt, as the model will see it; `refuse` drops such conversations as `prompt_differs`.

    `until: prompt` makes [prompts for reinforcement learning](../guides/post-training.md#rl-prompts): the text ends
    where an answer begins, the last answer is the column `completion`, and all other columns are kept.

    `keep: messages` is for chats to be filtered and deduplicated by their text, and written as chats: the steps that
    follow see the text, and `write` writes the records as they were read.

    [Chats](chats.md) has the details.
    """

    template: str | None = None
    """A Jinja file, or `chatml`. None: the template of the tokenizer."""
    tokenizer: str | None = None
    """The tokenizer whose template and special tokens these are. None: that of `tokenize`."""
    shape: Shape = "auto"
    """The form of the conversations, where it cannot be detected."""
    fields: dict[str, str] = msgspec.field(default_factory=dict)
    """The keys of chats without a known shape: `prompt` and `response`, or `messages`; `system` and `tools`."""
    train_on: TrainOn | tuple[str, ...] = "auto"
    """Which messages are trained. `auto`: all answers, but of lists of prompt and completion only the completion's. Or
    [kinds](chats.md#kinds-of-tokens): `[assistant, call, end]`."""
    train_end_of_turn: bool = True
    """Whether the token that ends an answer is trained with it."""
    append_eos: bool = False
    """Whether to add the tokenizer's end token to a last answer that does not end with it, and train it."""
    last_not_assistant: LastNotAssistant = "drop"
    """What to do with a conversation that does not end with an answer: `drop`, `keep`, or `trim` to its last answer."""
    split_turns: SplitTurns = "auto"
    """One example for each answer: `auto` where the template rewrites history, `always` or `never`."""
    max_tokens: int | None = None
    """Conversations with more tokens are too long. None: those of a packed row."""
    too_long: TooLong = "drop_turns"
    """`drop_turns`: drop the oldest exchanges; or several examples, cut between exchanges (`windows`) or turns
    (`turn_windows`); or `drop`, or `cut`."""
    date: str | None = None
    """The date for templates that ask for today's, such as `2026-01-31`."""
    prompt: PromptPolicy = "as_rendered"
    """What to do if the rendering of an answer does not begin with its prompt: use it `as_rendered`, build it
    `as_prompted`, or `refuse` it."""
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    """Variables of the template for every record (`enable_thinking: false`), unless the record sets them itself."""
    keep: Literal["messages"] | None = None
    """`messages`: [write the chat as it was read](chats.md#filtering-chats-without-changing-them). Its `text` and,
    with a tokenizer, `num_tokens` are columns for the steps in between.
    """
    until: Literal["prompt"] | None = None
    """`prompt`: render up to where the model is to answer, for [reinforcement
    learning](../guides/post-training.md#rl-prompts). Longer prompts than `max_tokens` are dropped.
    """
    tool_arguments: ToolArguments | None = None
    """Arguments of tool calls that are JSON in a string: pass them `as_given`, or as an `object` for templates that
    write the JSON themselves."""
    weights: bool | None = None
    """Whether answers have the `weight` of their message in the loss. False: all have 1. None: chats with weights other
    than 0 and 1 are refused."""
    images: str | None = None
    """A folder of images, or tars of them, that [conversations refer to](chats.md#chats-with-images) by name. Rows
    keep the references.
    """
    image_tokens: str | int | None = None
    """How many tokens an image has: the rule of a family (`qwen2_vl`, `qwen2_5_vl`, `llava`, `gemma3`) or a number.
    By default the family that the processor's files next to the tokenizer name.
    """
    image_token: str | None = None
    """With a number of `image_tokens`: the special token that is repeated, by default `<image>`."""
    trace: Literal["auto", "off"] = "auto"
    """Whether the template is traced: run once for each kind of conversation, not for each record. The texts are the
    same, and some are compared with Jinja's in every run; `off` runs Jinja for each record."""

    def __post_init__(self) -> None:
        check_choices(type(self), msgspec.structs.asdict(self))
        if self.until is not None and (self.images is not None or self.too_long in (CUT, WINDOWS)):
            key = "images" if self.images is not None else f"too_long: {self.too_long}"
            raise UsageError(
                f"render: {key} is for conversations that are trained, not for prompts", help="leave it out"
            )
        if not isinstance(self.train_on, str) and not check_kinds("train_on", self.train_on):
            raise UsageError("train_on: no kind is trained", help="name some: [assistant, reasoning, call, end]")
        if self.fields:
            self._check_fields()
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
                "render: chats with images cannot be cut",
                help="use too_long: drop_turns, windows, turn_windows or drop",
            )

    def _check_fields(self) -> None:
        unknown = [part for part in self.fields if part not in CHAT_PARTS]
        if unknown:
            raise UsageError(f"fields: {unknown[0]!r} is no part of a chat", help=f"known are {', '.join(CHAT_PARTS)}")
        needed = {"prompt"} if self.until is not None else {"prompt", "response"}
        if not (needed <= self.fields.keys()) ^ ("messages" in self.fields):
            raise UsageError("fields: a chat is a prompt and a response, or messages", help="name the keys of these")
        if self.shape != "auto":
            raise UsageError("render: `fields` names the parts of a chat, so it has no `shape`", help="leave one out")

    @property
    def untrusted_template(self) -> str:
        return "" if self.template in BUILT_IN else self.template or "the tokenizer"

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
            fields=self.fields,
            train_on=self.train_on if isinstance(self.train_on, str) else "auto",
            train_kinds=() if isinstance(self.train_on, str) else self.train_on,
            train_end_of_turn=self.train_end_of_turn,
            last_not_assistant=self.last_not_assistant,
            split_turns=self.split_turns if self.keep is None else SPLIT_NEVER,
            max_tokens=self.max_tokens,
            too_long=self.too_long,
            parse_arguments=self.tool_arguments == "object",
            accepts_quoted_arguments=self.tool_arguments == "as_given",
            append_eos=self.append_eos,
            prompt=self.prompt,
            weights=self.weights,
            template_variables=self.chat_template_kwargs,
        )
        rule, table = None, None
        if self.images is not None:
            rule, table = find_images(self.images, self.image_tokens, self.image_token, files, folder)
        facts = None
        controls: tuple[str, ...] = ()
        unknown: tuple[str, ...] = ()
        if files is not None:
            facts = read_facts(files)
            image_token = rule.token if rule is not None else None
            controls = find_control_tokens(template, files, find_unmarked_controls(facts), image_token)
            unknown = find_unknown_tokens(files, facts.added_tokens)
        return self._resolved_class()(
            template=template,
            options=options,
            today=_parse_date(self.date) if self.date is not None else None,
            files=files,
            special_tokens=facts.special_tokens if facts is not None else {},
            control_tokens=controls,
            unknown_tokens=unknown,
            engine=self._load_counting_engine(files),
            keeps_chat=self.keep is not None,
            renderer=f"jinja2 {version('jinja2')}",
            trace=self.trace != "off",
            image_rule=rule,
            image_table=table,
            image_content=table.content if table is not None else "",
        )

    def _resolved_class(self) -> type[ResolvedRender]:
        return ResolvedRender

    def _load_counting_engine(self, files: TokenizerFiles | None) -> str:
        if (self.max_tokens is None and self.keep is None and self.until is None) or files is None:
            return ""
        return choose_engine(files, CHOSEN, specials_as_text=False).engine


def _parse_date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"date: {text!r} is not a day", help="write it as 2026-01-31") from None


PLACES_TYPE = pa.list_(pa.int64())
CHAT_FIELDS = frozenset(
    (
        *("messages", "conversations", "conversation", "instruction", "input", "output", "prompt", "completion"),
        *(
            "system",
            "system_prompt",
            "system_message",
            "system_instruction",
            "tools",
            "functions",
            "chat_template_kwargs",
            TEXT,
        ),
    )
)

_WARNINGS = {
    "ignored_train_marks": "answers with `train: false` or `weight: 0` are trained; train_on: marked uses marks",
    "unread_marks": "fields that may be marks or part of the chat have no effect; the plan names those it saw",
    "several_shapes": "records fit several shapes, of which one is read; the plan names it, and `shape` chooses",
}


class ResolvedRender(LocalStep, tag="render", frozen=True, kw_only=True):
    """The step `render` with its template and tokenizer found."""

    version: ClassVar[int] = 8
    is_slow: ClassVar[bool] = True
    not_fingerprinted: ClassVar[tuple[str, ...]] = (
        *("files", "unknown_tokens", "report"),
        "trace",  # texts are the same with it and without
        "image_table",  # `image_content` is a hash of it
    )

    traits: ClassVar[StepTraits] = StepTraits(
        makes_text=True,
        needs_whole_record=True,
        warnings_by_counter=_WARNINGS,
    )

    template: FoundTemplate
    options: ChatOptions
    today: date | None
    files: TokenizerFiles | None
    special_tokens: dict[str, int]
    control_tokens: tuple[str, ...] = ()
    """Control tokens that the tokenizer does not mark as special."""
    unknown_tokens: tuple[str, ...] = ()
    """Special tokens that only `tokenizer_config.json` knows, not the tokenizer."""
    is_tokenized: bool = False
    """Whether a `tokenize` step follows, which needs texts and their kinds."""
    keeps_chat: bool = False
    """Whether records stay as they are, each with its text as a column next to it."""
    engine: str = ""
    """The engine that counts tokens, if their number is limited."""
    renderer: str
    """The library that runs the template, and its version."""
    report: TemplateReport | None = None
    trace: bool = True
    """Whether the template is traced."""
    image_rule: ImageRule | None = None
    image_table: ImageTable | None = None
    image_content: str = ""

    @property
    def keeps_record_beside(self) -> bool:
        return self.keeps_chat

    def keys_consumed(self) -> tuple[str, ...]:
        return () if self.keeps_chat else tuple(sorted(self._chat_fields))

    @property
    def _chat_fields(self) -> frozenset[str]:
        return CHAT_FIELDS.union(self.options.fields.values())

    @property
    def loaded_content(self) -> tuple[str, ...]:
        return () if self.files is None else (self.files.content,)

    @property
    def untrusted_template(self) -> str:
        return "" if self.template.is_built_in else self.template.name

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.keeps_chat:
            return self._add_schema_beside(schema)
        carried = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
        if self.is_tokenized:
            added = [(TEXT, TEXT_TYPE), (KINDS, PLACES_TYPE), (LITERALS, PLACES_TYPE)]
            added += [(WEIGHTS, pa.list_(pa.float32()))] if self.options.weights else []
            added += [(IMAGES, IMAGES_TYPE)] if self.image_rule is not None else []
        else:
            added = [(TEXT, TEXT_TYPE), (PROMPT, TEXT_TYPE), (COMPLETION, TEXT_TYPE)]
            carried += [field for field in list_value_columns(schema) if field.name not in self._chat_fields]
            carried += [schema.field(RECORD)] if RECORD in schema.names else []
        return pa.schema([*carried, *(pa.field(*column) for column in added)])

    def _add_schema_beside(self, schema: pa.Schema) -> pa.Schema:
        added = [pa.field(TEXT, TEXT_TYPE, metadata={BESIDE_RECORD: b"text"})]
        added += [pa.field(NUM_TOKENS, pa.int64())] if self.files is not None else []
        names = {field.name for field in added}
        return pa.schema([*(field for field in schema if field.name not in names), *added], schema.metadata)

    def columns_added(self) -> tuple[str, ...]:
        return (NUM_TOKENS,) if self.keeps_chat else (PROMPT, COMPLETION)

    def adapt_to_sample(self, sample: pa.RecordBatch) -> Self:
        """Check the template on real records; raises `UsageError` for anything that would be trained wrongly."""
        report = self.check_records([record for record in decode_records(sample) if isinstance(record, dict)])
        for problem in report.problems:
            raise UsageError(f"render with the template of {self.template.name}: {problem.message}", help=problem.help)
        return msgspec.structs.replace(self, report=report)

    def check_records(self, records: Sequence[Mapping[str, Any]]) -> TemplateReport:
        """Report what the template does to these records."""
        maker = self.load().maker
        count_tokens = self._make_token_counter()  # loads a tokenizer, for which the template is not to blame
        with self._limit_template():
            return check_template(
                maker,
                records,
                self.template.variables,
                unknown_tokens=self.unknown_tokens,
                count_tokens=count_tokens,
            )

    def notes(self) -> list[str]:
        images = []
        if self.image_rule is not None and self.image_table is not None:
            images = [f"images: {len(self.image_table.entries):,} names; tokens by the rule {self.image_rule.family}"]
        return [*images, *(self.report.notes if self.report is not None else [])]

    def load(self) -> RenderKernel:
        count_all = self._make_batch_counter() if self.keeps_chat else None
        maker, limits = self._load_maker(traces=self.trace)
        tokens = [*self.special_tokens, *self.control_tokens]
        return RenderKernel(maker, self.output_schema, tokens, limits, count_all, self._refer_to_images)

    def _load_maker(self, *, traces: bool) -> tuple[ExampleMaker, TemplateLimits | None]:
        """Compile the template, within its limits."""
        count = self._make_token_counter(self.engine) if self.options.max_tokens is not None else None
        with self._limit_template() as limits:
            maker = ExampleMaker(
                self.template,
                self.options,
                today=self.today,
                special_tokens=self.special_tokens,
                control_tokens=self.control_tokens,
                count_tokens=count,
                images=self._load_images(),
            )
            if traces:
                maker.start_tracing(limits.restart if limits is not None else None)
        return maker, limits

    def _load_images(self) -> ChatImages | None:
        if self.image_rule is None or self.image_table is None:
            return None
        return make_chat_images(self.image_rule, self.image_table)

    def _refer_to_images(self, names: Iterable[str]) -> list[dict[str, Any]]:
        assert self.image_rule is not None
        assert self.image_table is not None
        return refer_to_images(names, self.image_rule, self.image_table)

    def _make_token_counter(self, name: str = REFERENCE) -> Callable[[str], int] | None:
        if self.files is None:
            return None
        engine = load_engine(self.files, name, specials_as_text=False)
        return lambda text: len(engine.encode([text])[0])

    def _make_batch_counter(self) -> Callable[[pa.Array], NDArray[np.int64]] | None:
        if self.files is None:
            return None
        engine = load_engine(self.files, self.engine, specials_as_text=False)
        return lambda texts: np.diff(engine.encode(texts)[1])

    @contextmanager
    def _limit_template(self) -> Iterator[TemplateLimits | None]:
        """Limit time and memory of an untrusted template, which runs code already while Jinja compiles it."""
        if not self.untrusted_template:
            yield None
            return
        limits = TemplateLimits()
        try:
            with limits:
                yield limits
        except TemplateTimeout as error:
            problem = str(error)
        except MemoryError:
            problem = f"takes more than {limits.max_growth_bytes >> 30} GiB of memory"
        else:
            return
        raise UsageError(
            f"render: the template of {self.template.name} {problem}",
            help="look for a loop or a large number in it, or name another template",
        )

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        """Apply the step once, for tests and trials: this compiles the template. A run calls `load` once a worker."""
        return self.load().apply(batch, seed)
