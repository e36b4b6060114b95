"""What becomes of chats in many templates, as a table: `python -m gristmill_testing.template_matrix` writes the page.

Each template gets the same chats. What it makes of them is compared with what a person would expect: the text with that
of transformers, the trained words with those of the assistant, the end of each answer with a list written by hand.
"""

import datetime as dt
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from unittest import mock

from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.options import ChatOptions
from gristmill.text.chats.shapes import NotAChat, parse_conversation
from gristmill.text.chats.templates import ChatTemplate, FoundTemplate, TemplateError
from gristmill_testing import chat_templates
from gristmill_testing.open_chats import published_templates

PAGE = Path(__file__).parents[3] / "docs/reference/templates.md"
TODAY = dt.date(2026, 1, 31)
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
ENDS = {
    # What ends an answer, as a person reads the templates; by the beginning of their names, the longest that fits.
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "cohere2": "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    "deepseek": "<｜end▁of▁sentence｜>",  # noqa: RUF001
    "diffusion_gemma": "<turn|>",
    "gemma": "<end_of_turn>",
    "gemma4": "<turn|>",
    "glm4moe": "",
    "glm4moe_training": "<|user|>",
    "gptoss": "<|return|>",
    "idefics3": "<end_of_utterance>",
    "lfm2": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "llava_next": "</s>",
    "muse": "<|eot|>",
    "nemotron": "<|im_end|>",
    "phi3": "<|end|>",
    "qwen": "<|im_end|>",
    "smolvlm": "<end_of_utterance>",
    "made": "<|im_end|>",
    "made_nested_ends": "<|end_response|><|end_turn|>",
    "made_last_end": "<|end|>",
    "made_no_end": "",
    "made_end_between": "",
    "made_forgetful": "",
}
MADE = (
    *("chatml", "tagged", "forgetful", "thinking_prompt", "empty_thought", "closed_thought", "switched_thought"),
    *(
        "open_thought",
        "tagged_header",
        "nested_ends",
        "last_end",
        "next_header",
        "line_before_header",
        "one_call",
        "no_arguments",
        "no_end",
        "end_between",
    ),
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {name} of a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string", "description": "Where."}}},
        },
    }
    for name in ("weather", "clock")
]


def _user(words):
    return {"role": "user", "content": words}


def _answer(words, **more):
    return {"role": "assistant", "content": words, **more}


def _calls(*places, beside=""):
    calls = [
        {"id": f"call0000{n}", "type": "function", "function": {"name": "weather", "arguments": {"place": place}}}
        for n, place in enumerate(places)
    ]
    results = [
        {"role": "tool", "name": "weather", "tool_call_id": f"call0000{n}", "content": f"result{n}"}
        for n, _ in enumerate(places)
    ]
    return [_answer(beside, tool_calls=calls), *results]


PLAIN = {
    "one turn": {"messages": [_user("Question one?"), _answer("Answer one.")]},
    "two turns": {
        "messages": [_user("Question one?"), _answer("Answer one."), _user("Question two?"), _answer("Answer two.")]
    },
    "system": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            *(_user("Question one?"), _answer("Answer one."), _user("Question two?"), _answer("Answer two.")),
        ]
    },
    "reasoning": {"messages": [_user("Question one?"), _answer("Answer one.", reasoning_content="Reason one.")]},
}
CALLS = {
    "call": {"messages": [_user("Question one?"), *_calls("Ulm"), _answer("Answer one.")], "tools": TOOLS},
    "calls at once": {
        "messages": [_user("Question one?"), *_calls("Ulm", "Bonn"), _answer("Answer one.")],
        "tools": TOOLS,
    },
    "text beside a call": {
        "messages": [_user("Question one?"), *_calls("Ulm", beside="Let me look."), _answer("Answer one.")],
        "tools": TOOLS,
    },
}
NOT_TRAINED = ("Question", "Be brief", "result0", "result1")


@dataclass
class Row:
    """What was found for one template."""

    name: str
    source: str
    about: str = ""
    num_equal: int = 0
    num_texts: int = 0
    num_answers: int = 0
    num_trained: int = 0
    num_ended: int = 0
    wrong: list[str] = field(default_factory=list)
    """Words of others that would be trained."""
    calls: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    differs: bool = False
    splits: bool = False
    ending: str | None = None

    @property
    def end(self):
        if self.ending is not None:
            return self.ending
        known = [prefix for prefix in ENDS if self.name.startswith(prefix)]
        return ENDS[max(known, key=len)]


def all_rows():
    """Of every template: those of packages, and one for each mechanism."""
    published = {name: (source, "") for name, source in published_templates().items()}
    made = {
        f"made_{name}": (getattr(chat_templates, name.upper()), chat_templates.ABOUT[name.upper()]) for name in MADE
    }
    return [row_of(Row(name, source, about)) for name, (source, about) in (published | made).items()]


def row_of(row):
    """The row, filled in."""
    with _frozen_date():
        return _filled(row)


def _filled(row):
    found = FoundTemplate(name=row.name, sources={"default": row.source}, variables=VARIABLES)
    maker = ExampleMaker(found, ChatOptions(), today=TODAY)
    template = ChatTemplate(row.source, VARIABLES, today=TODAY)
    takes_parts = not _renders(template, PLAIN["one turn"])
    for kind, record in (PLAIN | CALLS).items():
        given = _in_parts(record) if takes_parts else record
        _compare_texts(row, template, given)
        try:
            made = maker.make(given)
        except NotAChat as problem:
            row.refused[kind] = problem.reason
            continue
        _compare_masks(row, kind, record, made)
    return row


def _renders(template, record):
    try:
        text = template.render(record["messages"])
    except TemplateError:
        return False
    return all(message["content"] in text for message in record["messages"])


def _in_parts(record):
    """Templates for images take content as parts only."""
    messages = [
        {**message, "content": [{"type": "text", "text": message["content"]}]} for message in record["messages"]
    ]
    return {**record, "messages": messages}


def _compare_texts(row, template, record):
    from transformers.utils.chat_template_utils import render_jinja_template

    conversation = parse_conversation(record)
    for prompts in (False, True):
        try:
            [[expected], _] = render_jinja_template(
                [conversation.messages],
                tools=record.get("tools"),
                chat_template=row.source,
                add_generation_prompt=prompts,
                **VARIABLES,
            )
        except Exception:
            expected = None
        try:
            text = template.render(conversation.messages, conversation.tools, {"add_generation_prompt": prompts})
        except TemplateError:
            text = None
        row.num_texts += 1
        row.num_equal += text == expected


def _compare_masks(row, kind, record, made):
    spans = [example.text[start:end] for example in made.examples for start, end in example.trained]
    row.differs |= any(name == "prompt_differs" for name, _ in made.counts)
    row.splits |= any(name == "split_turns" for name, _ in made.counts)
    row.wrong += [words for words in NOT_TRAINED for span in spans if words in span]
    for message in record["messages"]:
        if message["role"] == "assistant" and message["content"].startswith("Answer"):
            own = [span for span in spans if message["content"] in span]
            row.num_answers += 1
            row.num_trained += len(own) == 1
            row.num_ended += all(span.endswith(row.end) for span in own)
    if kind in CALLS:
        places = [call["function"]["arguments"]["place"] for call in record["messages"][1]["tool_calls"]]
        kept = all(sum(place in span and "weather" in span for span in spans) == 1 for place in places)
        beside = record["messages"][1]["content"]
        has_words = not beside or any(beside in span for span in spans)
        is_counted = any(name == "answer_left_out" for name, _ in made.counts)
        row.calls[kind] = "lost" if not kept else "kept" if has_words else "counted" if is_counted else "lost"


def _frozen_date():
    from transformers.utils import chat_template_utils

    class Frozen(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(TODAY.year, TODAY.month, TODAY.day, tzinfo=tz)

    return mock.patch.object(chat_template_utils, "datetime", Frozen)


INTRODUCTION = """# Chat templates

How `render` handles chats with {count} chat templates: the {num_published} that TRL {trl} includes, and {num_made}
written for the tests, one for each way in which templates differ. The page is generated, and a test fails if it is
out of date.

* **text**: how many of {num_texts} renderings, with and without a prompt, are equal to those of transformers
  {transformers} to the byte.
* **answers**: how many of the assistant's answers are trained, each exactly once and without text of other roles.
* **end**: the tokens that end every answer and are trained with it. If there are none, the plan stops and suggests
  `append_eos`.
* **call**, **several calls**, **text and call**: `kept` means that the call is trained with all names and arguments.
  `counted` means that it is trained without the text beside it, which the template leaves out (`answer_left_out`). Any
  other value is the reason why the record is quarantined: the template refuses it, or leaves calls or results out.
* **prompt**: `differs` if the prompt for an answer differs from the rendering of that answer (`prompt_differs`).
* **history**: `split` if the template renders earlier turns differently, so each answer becomes its own example.

| template | text | answers | end | call | several calls | text and call | prompt | history |
|---|---|---|---|---|---|---|---|---|
"""


def page(rows):
    """The rows as Markdown."""
    made = [row for row in rows if row.about]
    text = INTRODUCTION.format(
        count=len(rows),
        num_published=len(rows) - len(made),
        num_made=len(made),
        num_texts=rows[0].num_texts,
        trl=version("trl"),
        transformers=version("transformers"),
    )
    for row in rows:
        end = f"`{row.end}`".replace("|", "\\|") if row.end else "none"
        calls = [row.calls.get(kind) or f"`{row.refused[kind]}`" for kind in CALLS]
        refused = [f"; {kind}: `{row.refused[kind]}`" for kind in PLAIN if kind in row.refused]
        answers = f"{row.num_trained} of {row.num_answers}{''.join(refused)}"
        cells = [
            *(f"{row.num_equal}", answers, end, *calls),
            *("differs" if row.differs else "", "split" if row.splits else ""),
        ]
        text += f"| {row.name} | {' | '.join(cells)} |\n"
    text += "\n## Templates written for the tests\n\n"
    for row in made:
        text += f"* **{row.name}**: {row.about}\n"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(all_rows()), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
