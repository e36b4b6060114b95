"""The first commands of a newcomer: `gristmill init` and `gristmill demo`.

`init` writes a starter recipe or a template for a common job, with sample data to run it on. `demo` goes through all
stages of the product, from files that every machine has to packed rows of tokens.
"""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec

from gristmill.cli.options import workers_option
from gristmill.cli.printing import echo, print_json, quote_path, to_one_line
from gristmill.cli.tables import print_books, print_lines, print_tokens
from gristmill.core.errors import GristmillError, UsageError
from gristmill.core.quantities import format_bytes
from gristmill.engine.progress import Activity
from gristmill.pipeline.jobs.demo import DemoFolder, prepare_demo
from gristmill.pipeline.jobs.training_jobs import train_tokenizer
from gristmill.pipeline.run import RunResult, run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.recipe.load import load_recipe, parse_recipe
from gristmill.recipe.templates import STARTER_DATA, STARTER_RECIPE, make_files
from gristmill.recipe.yaml_tree import edit_text
from gristmill.shards.dataset import Dataset
from gristmill.stream import Stream

TEMPLATE_NAMES = ("pretrain", "sft", "fineweb", "chats", "code", "images", "dedup")
_WITH_TOKENIZER = (None, "pretrain", "sft")
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SHOWN_ROWS = 2
_SHOWN_CHARS = 300
_BATCH_SIZE = 8


@click.command(epilog="Example: gristmill init corpus --template fineweb")
@click.argument("folder", type=click.Path(file_okay=False), default=".")
@click.option(
    "--template",
    type=click.Choice(TEMPLATE_NAMES),
    help="A recipe for a common job, with comments that say what each step keeps of the sample data.",
)
@click.option(
    "--tokenizer",
    help="A folder or a name on the Hugging Face Hub, for recipes that tokenize (without --template, pretrain, sft). "
    "Default: a new one, trained on the sample data.",
)
def init_command(folder: str, template: str | None, tokenizer: str | None) -> None:
    """Write a commented recipe and sample data into FOLDER (default: the current folder).

    Without a template, the recipe ends in packed rows of tokens. Existing files are never overwritten.
    """
    if tokenizer is not None and template not in _WITH_TOKENIZER:
        raise UsageError(
            "--tokenizer needs a template that tokenizes", help="leave out --template, or choose pretrain or sft"
        )
    files: dict[str, bytes] = {"recipe.yaml": STARTER_RECIPE.encode(), "sample.jsonl": STARTER_DATA.encode()}
    if template is not None:
        files = dict(make_files(template))
    root = Path(folder)
    trains = template in _WITH_TOKENIZER and tokenizer is None
    if tokenizer is not None:
        place = str(Path(tokenizer).absolute()) if Path(tokenizer).exists() else tokenizer
        recipe = files["recipe.yaml"].decode()
        index = [step.name for step in parse_recipe(recipe).steps].index("tokenize")
        files["recipe.yaml"] = edit_text(recipe, [f"steps.{index}.tokenize.tokenizer={json.dumps(place)}"]).encode()
    for name in [*files, *(["tokenizer"] if trains else [])]:
        if (root / name).exists():
            raise UsageError(f"{root / name} already exists", help="choose another folder: gristmill init FOLDER")
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)
    if trains:
        train_tokenizer(_list_texts(files), root / "tokenizer", vocab_size=512, special_tokens=_SPECIAL_TOKENS)
        echo(f"wrote {root / 'tokenizer'}: trained on the sample data")
    shown_names = [name for name in files if name.count("/") == 0] or list(files)
    for name in shown_names:
        echo(f"wrote {root / name}")
    if len(shown_names) < len(files):
        echo(f"wrote {len(files) - len(shown_names)} files in folders of {root}")
    echo(f"next: gristmill plan {quote_path(root / 'recipe.yaml')}")


def _list_texts(files: Mapping[str, bytes]) -> Iterator[str]:
    """List the texts of the records in sample data, or of their messages."""
    for line in b"".join(content for name, content in files.items() if name.endswith(".jsonl")).splitlines():
        record = json.loads(line)
        yield from (part["content"] for part in record.get("messages", [{"content": record.get("text", "")}]))


@click.command(epilog="Example: gristmill demo --workers 2")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path("gristmill-demo"))
@workers_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end instead of text.")
def demo_command(folder: Path, workers: int | None, *, as_json: bool) -> None:
    """Turn Python's standard library into packed rows of tokens, in FOLDER (default: gristmill-demo).

    The demo reads the library's code and docstrings on all cores, while one worker is killed on purpose. It trains a
    tokenizer, then filters, splits, tokenizes and packs the documents, verifies the dataset and streams it. Nothing is
    downloaded. FOLDER keeps the recipe: change it and run it again.
    """
    progress = False if as_json else None
    _print_progress(as_json, f"1. Python's standard library as documents, and a tokenizer trained on it, in {folder}")
    prepared = prepare_demo(folder, workers=workers or "auto", progress=progress)
    _print_prepared(prepared, as_json=as_json)
    _print_progress(as_json, f"2. gristmill run {quote_path(prepared.recipe)}")
    start = time.perf_counter()
    options = RunOptions(workers=workers or "auto", progress=progress, update=True)
    result = run_recipe(load_recipe(prepared.recipe), options)
    seconds = time.perf_counter() - start
    dataset = result.dataset()
    verification = dataset.verify()
    if not verification:
        raise GristmillError(f"the dataset is damaged: {verification.problems[0]}")
    if as_json:
        print_json(json.dumps(_as_dict(prepared, result, seconds), indent=2))
        return
    _print_result(result, seconds)
    _print_rows(dataset)
    _print_batches(dataset)
    echo("Next, with your own data:")
    echo("   gristmill init my-corpus           # a commented recipe to start from")
    echo("   gristmill plan my-corpus/recipe.yaml --set sources.sample.read='/data/*.jsonl'")
    echo("   gristmill run my-corpus/recipe.yaml --debug    # a few records, step by step")
    echo(f"Or with this demo: edit {prepared.recipe}, then gristmill run {quote_path(prepared.recipe)} --update")
    target = quote_path(result.output)
    echo(f"   gristmill inspect {target}; gristmill export {target} --to numpy")


def _print_progress(as_json: bool, line: str) -> None:  # noqa: FBT001
    if not as_json:
        print_lines(line)


def _print_prepared(prepared: DemoFolder, *, as_json: bool) -> None:
    left_out = f", {prepared.num_unreadable} with an unreadable encoding left out" if prepared.num_unreadable else ""
    amounts = f"{prepared.num_files:,} files and {prepared.num_docstrings:,} docstrings"
    times = f"in {prepared.extract_seconds:.1f} s{left_out}; the tokenizer took {prepared.train_seconds:.1f} s"
    killed = f"Worker {prepared.killed_pid} was killed (SIGKILL) while it read {prepared.killed_at}"
    _print_progress(as_json, f"   {amounts} {times}")
    _print_progress(as_json, f"   {killed}; another read it again.")
    _print_progress(as_json, "   Nothing was lost: the numbers of files and bytes agree with the file system.")


def _count_bytes(result: RunResult) -> int:
    return sum(account.counters["bytes"] for books in result.books.values() for account in books)


def _print_result(result: RunResult, seconds: float) -> None:
    print_books(result.books, more=f"gristmill inspect {quote_path(result.output)} --details")
    print_tokens(result.manifest)
    num_bytes = _count_bytes(result)
    outcome = (
        "up to date"
        if result.was_up_to_date
        else f"{format_bytes(num_bytes)} of text, {_format_speed(result, seconds)}"
    )
    print_lines(f"3. {outcome}; every checksum, row and token verified; every record is accounted for")


def _format_speed(result: RunResult, seconds: float) -> str:
    """Describe the speed without planning, start-up and compilation, which do not grow with the amount of text."""
    working = result.work_seconds
    rate = _count_bytes(result) / 1e6 / working if working else 0.0
    return f"{rate:.1f} MB/s ({working:.1f} s; planning, start-up and compilation {seconds - working:.1f} s)"


def _print_rows(dataset: Dataset) -> None:
    echo("4. A few rows, decoded:")
    for number in range(0, len(dataset), max(1, len(dataset) // _SHOWN_ROWS))[:_SHOWN_ROWS]:
        row = dataset[number]
        echo(f"   row {number}: {len(row['lengths'])} documents, {int(row['lengths'].sum())} tokens")
        print_lines(f"   {to_one_line(dataset.decode(number), max_chars=_SHOWN_CHARS)}", breaks_words=True)


def _print_batches(dataset: Dataset) -> None:
    with Activity() as activity:
        activity.show("opening the stream (kernels are compiled once for this machine)")
        stream = Stream(dataset.folder, seed=7)
        stream.batch(0, _BATCH_SIZE)
    echo("5. Batches in the order of training, from any step:")
    for step in (0, 1, 1_000_000):
        batch = stream.batch(step, _BATCH_SIZE)
        num_trained = int((batch["labels"] >= 0).sum())
        print_lines(f"   step {step:,}: input_ids {batch['input_ids'].shape}, {num_trained:,} trained tokens")


def _as_dict(prepared: DemoFolder, result: RunResult, seconds: float) -> dict[str, object]:
    return {
        "recipe": str(prepared.recipe),
        "output": str(result.output),
        "num_files": prepared.num_files,
        "num_docstrings": prepared.num_docstrings,
        "killed_worker": {"pid": prepared.killed_pid, "file": str(prepared.killed_at)},
        "seconds": round(seconds, 3),
        "num_bytes": _count_bytes(result),
        "books": msgspec.to_builtins(result.books),
        "dataset_hash": result.manifest.dataset_hash,
    }
