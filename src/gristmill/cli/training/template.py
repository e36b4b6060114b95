"""`gristmill template`: check a chat template on chats before a run depends on it."""

from collections import Counter
from typing import get_args

import click
import msgspec

from gristmill.cli.options import Choice, json_option
from gristmill.cli.printing import echo, print_json
from gristmill.cli.tables import print_lines
from gristmill.core.checks import escape_controls
from gristmill.core.quantities import format_count
from gristmill.pipeline.jobs.training_jobs import TemplateTrial, try_template
from gristmill.readers.formats import FORMATS
from gristmill.readers.read import Read, to_path
from gristmill.steps.render import Render
from gristmill.steps.render.render import ToolArguments
from gristmill.text.chats.options import LastNotAssistant, PromptPolicy, SplitTurns, TrainOn
from gristmill.text.chats.shapes import Shape

_SHOWN_TOKENS = 600
_OPEN, _CLOSE = "⟦", "⟧"
"""Brackets around trained tokens, for terminals without colors."""


@click.group(epilog="Example: gristmill template check tokenizers/qwen2_5 chats.jsonl")
def template_command() -> None:
    """Check a chat template on your chats."""


@template_command.command(
    "check",
    short_help="Show what would be trained on, and find silent mistakes.",
    epilog="Example: gristmill template check tokenizers/mine chats.jsonl --template chatml --date 2026-01-31",
)
@click.argument("tokenizer")
@click.argument("files", nargs=-1, required=True)
@click.option("--template", help="Jinja file or name of a built-in template. Default: the template of the tokenizer.")
@click.option("--shape", type=Choice(get_args(Shape)), default="auto", show_default=True, help="Shape of the records.")
@click.option(
    "--train-on",
    type=Choice(get_args(TrainOn)),
    default="auto",
    show_default=True,
    help="Which messages are trained.",
)
@click.option(
    "--train-end-of-turn/--no-train-end-of-turn",
    default=True,
    show_default=True,
    help="Train the end of turn with its answer.",
)
@click.option(
    "--split-turns",
    type=Choice(get_args(SplitTurns)),
    default="auto",
    show_default=True,
    help="Make one example of each turn.",
)
@click.option(
    "--last-not-assistant",
    type=Choice(get_args(LastNotAssistant)),
    default="drop",
    show_default=True,
    help="What to do with chats that do not end with an answer.",
)
@click.option("--append-eos", is_flag=True, help="Add the end token to last answers that lack it.")
@click.option(
    "--prompt",
    type=Choice(get_args(PromptPolicy)),
    default="as_rendered",
    show_default=True,
    help="What to do if the generation prompt holds more than the rendered turn.",
)
@click.option("--date", help="The date that templates see as today's.")
@click.option(
    "--tool-arguments", type=Choice(get_args(ToolArguments)), help="Use object if arguments are JSON in a string."
)
@click.option(
    "--format", "format_name", type=Choice(FORMATS), help="Format of the files, if their names do not show it."
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="PART=KEY",
    help="Key of a part of chats without a known shape: prompt, response, messages, system, tools.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 also if something of the chats would not be trained.")
@click.option("--records", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of chats to try.")
@click.pass_context
@json_option
def check_command(
    context: click.Context,
    tokenizer: str,
    files: tuple[str, ...],
    template: str | None,
    shape: Shape,
    train_on: TrainOn,
    split_turns: SplitTurns,
    last_not_assistant: LastNotAssistant,
    prompt: PromptPolicy,
    date: str | None,
    tool_arguments: ToolArguments | None,
    format_name: str | None,
    fields: tuple[str, ...],
    records: int,
    *,
    train_end_of_turn: bool,
    append_eos: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Render the first chats in FILES with the chat template of TOKENIZER, and show what would be trained.

    Finds silent mistakes: two begin tokens, an end of turn that is never trained, records without trained tokens,
    special tokens in the text of users, history that is rewritten, tool arguments that are quoted twice; and what is
    lost: tokens of answers that the template leaves out, fields that nothing reads. Exits with 1 if a run would stop.
    """
    render = Render(
        tokenizer=tokenizer,
        template=template,
        shape=shape,
        fields={part: key for part, _, key in (field.partition("=") for field in fields)},
        train_on=train_on,
        weights=True,
        train_end_of_turn=train_end_of_turn,
        append_eos=append_eos,
        split_turns=split_turns,
        last_not_assistant=last_not_assistant,
        prompt=prompt,
        date=date,
        tool_arguments=tool_arguments,
    )
    checked = try_template(
        render, Read(read=[to_path(file) for file in files], format=format_name), max_records=records
    )
    if as_json:
        print_json(msgspec.json.format(msgspec.json.encode(checked)).decode())
    else:
        _print(checked)
    if checked.report.problems or (strict and checked.report.has_losses):
        context.exit(1)


def _print(checked: TemplateTrial) -> None:
    report = checked.report
    if checked.tokens:
        click.echo(_mark_tokens(checked))
        echo()
        trained = sum(checked.trained)
        echo(f"{trained} of {len(checked.trained)} tokens of this example are trained")
        kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(checked.kinds).most_common())
        echo(f"kinds of tokens: {kinds}")
    echo(f"{format_count(report.num_examples, 'example')} from {format_count(report.num_records, 'record')}")
    for name, counts in (("dropped", report.dropped), ("would be quarantined", report.bad)):
        for reason, count in counts.items():
            echo(f"{name}: {reason} {count}")
    for kind, answers in report.answers.items():
        echo(f"answers, {kind}: {answers.num_answers}, of which {answers.num_lost} would not be trained")
    if report.prompt_difference is not None:
        difference = report.prompt_difference
        echo(f"prompt:   {difference.prompt!r}")
        echo(f"rendered: {difference.rendered!r}")
    for note in report.notes:
        print_lines(f"note: {note}")
    for problem in report.problems:
        click.echo(click.style(f"problem: {escape_controls(problem.message)}", fg="red"))
        print_lines(f"  help: {problem.help}")
    if not report.problems and not report.has_losses:
        echo("no problems found")


def _mark_tokens(checked: TemplateTrial) -> str:
    """Mark the tokens of an example: trained ones are green and in brackets, and every second token is dim."""
    parts = []
    is_open = False
    visible_tokens = list(zip(checked.tokens, checked.trained, strict=True))[:_SHOWN_TOKENS]
    for number, (token, is_trained) in enumerate(visible_tokens):
        if is_trained != is_open:
            parts.append(_OPEN if is_trained else _CLOSE)
            is_open = is_trained
        parts.append(
            click.style(
                escape_controls(token), fg="green" if is_trained else None, bold=is_trained, dim=number % 2 == 1
            )
        )
    if is_open:
        parts.append(_CLOSE)
    if len(checked.tokens) > len(visible_tokens):
        parts.append(f" … ({len(checked.tokens) - len(visible_tokens)} more)")
    return "".join(parts)
