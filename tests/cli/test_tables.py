"""The summary fits every terminal from a phone's on, and its numbers are those of the books."""

import fcntl
import json
import os
import pty
import random
import re
import struct
import subprocess
import sys
import termios
from collections import Counter

import pyarrow as pa
import pytest
from rich.cells import cell_len

from gristmill.cli.tables import format_books, format_tokens, is_short, print_table, wrap, wrap_line
from gristmill.core.books import Account
from gristmill.shards.manifest import Manifest
from gristmill.shards.stored_files import Schema, Shard

LETTERS = "abc _-€ü粉🦀\x1b\x07\u202e"


def random_name(rng):
    return "".join(rng.choices(LETTERS, k=rng.randrange(1, 50)))


def random_counts(rng):
    return {random_name(rng): 10 ** rng.randrange(10) for _ in range(rng.randrange(8))}


def random_account(rng):
    """An account that balances."""
    dropped, quarantined, given = random_counts(rng), random_counts(rng), rng.randrange(10**10)
    num_left = given + sum(dropped.values()) + sum(quarantined.values())
    created = rng.choice([0, rng.randrange(num_left + 1)])
    return Account(
        random_name(rng),
        records_in=num_left - created,
        created=created,
        records_out=given,
        dropped=dropped,
        quarantined=quarantined,
        counters=random_counts(rng),
    )


@pytest.mark.parametrize("seed", range(100))
def test_no_line_is_longer_than_the_terminal_and_nothing_in_them_steers_it(seed):
    rng = random.Random(seed)
    books = {
        random_name(rng): [random_account(rng) for _ in range(rng.randrange(1, 4))] for _ in range(rng.randrange(1, 6))
    }
    width = rng.randrange(46, 120)
    for line in format_books(books, width):
        assert cell_len(line) <= width
        assert line.isprintable()


def numbers_in(lines):
    return [int(word.replace(",", "")) for line in lines for word in re.findall(r"\d[\d,]*(?=\s|$)", line)]


@pytest.mark.parametrize("width", [50, 80])
@pytest.mark.parametrize("seed", range(40))
def test_what_a_step_took_away_adds_up(seed, width):
    """Names are left out here: they may hold numbers of their own."""
    account = random_account(random.Random(seed))
    account.step, account.counters = "step", Counter()
    account.dropped, account.quarantined = (
        Counter({"abcdefgh"[number]: count for number, count in enumerate(counts.values())})
        for counts in (account.dropped, account.quarantined)
    )
    lines = list(format_books({"web": [account]}, width))
    num_gone = account.dropped.total() + account.quarantined.total()
    head, step, *reasons = lines
    assert head.split()[0] == "web"
    assert (
        numbers_in([step.split("%")[0] if num_gone == 0 else step])[:2]
        == [account.records_out, num_gone][: 1 + (num_gone > 0)]
    )
    if account.created:
        assert numbers_in([reasons[0]]) == [account.created]
        reasons = reasons[1:]
    shown = [int(line.split()[-1].replace(",", "")) for line in reasons]
    assert sum(shown) == num_gone
    assert len(shown) <= 5
    hidden = len(account.dropped) + len(account.quarantined) > 5
    assert hidden == is_short({"web": [account]})
    everything = list(format_books({"web": [account]}, width, details=True))
    assert len(everything) >= len(lines)


def test_many_sources_are_a_line_each():
    steps = [Account("read", records_in=10, records_out=10)]
    steps += [Account("length", records_in=10, records_out=7, dropped=Counter(too_short=3))]
    books = {f"source{number}": steps for number in range(9)}
    head, *lines, reasons = format_books(books, 60)
    assert head.split() == ["in", "length", "left", "share"]
    assert lines[0].split() == ["source0", "10", "-3", "7", "70.0%"]
    assert lines[-1].split() == ["all", "9", "90", "-27", "63", "70.0%"]
    assert len(lines) == 10
    assert "length: too_short 27" in reasons
    many = {f"source{number}": steps for number in range(80)}
    assert len(list(format_books(many, 60))) < 30
    assert is_short(books)
    assert sum("too_short" in line for line in format_books(books, 50, details=True)) == 9


def test_tokens_of_many_sources_are_a_table_that_adds_up():
    names = [f"source{number}" for number in range(80)]
    shards = {
        name: [
            Shard(path=f"train/{name}", bytes=9, xxh3="", rows=2 + number, tokens=100 + number, trained_tokens=number)
        ]
        for number, name in enumerate(names)
    }
    books = {name: [Account("tokenize", counters=Counter(cut_tokens=3))] for name in names}
    manifest = Manifest(
        kind="chats",
        format="arrow",
        schema=Schema.of(pa.schema([])),
        splits={"train": shards},
        books=books,
        row_length=64,
    )
    head, *lines = format_tokens(manifest, 80)
    assert head.split() == ["tokens", "rows", "trained", "left", "out", "filled"]
    assert len(lines) == 22
    cells = [line.replace(",", "").replace(" others", "_others").replace("all ", "all_").split() for line in lines]
    for column in (1, 2, 4):
        assert sum(int(row[column]) for row in cells[:-1]) == int(cells[-1][column])
    assert cells[-1][1:3] == [str(sum(range(100, 180))), str(sum(range(2, 82)))]
    assert all(cell_len(line) <= 50 for line in format_tokens(manifest, 50))


@pytest.mark.parametrize("num_columns", [40, 60, 80])
def test_names_and_heads_of_tables_are_never_broken(monkeypatch, capsys, num_columns):
    monkeypatch.setenv("COLUMNS", str(num_columns))
    name, heads = "max_ellipsis_word_ratio", ("rule", "threshold", "broken", "alone", "median")
    print_table(heads, [(name, "0.3", "12,345", "67", "0.12"), ("花" * 20, "1", "2", "3", "4")])
    lines = capsys.readouterr().out.splitlines()
    words = " ".join(lines)
    assert all(word in words for word in (name, "花" * 20, *heads[1:], "12,345"))
    assert all(cell_len(line) <= num_columns for line in lines if "花" not in line)


def test_paths_and_commands_stay_whole():
    path = "/a/rather/long/path/that-has-hyphens/and/does/not/fit/into/forty/columns"
    assert any(path in line for line in wrap(f"done: 3 rows, in {path}", 40))


@pytest.mark.parametrize("seed", range(100))
def test_lines_of_lists_and_trees_are_wrapped_behind_their_branches(seed):
    rng = random.Random(seed)
    branches = rng.choice(["", "  ", "├── ", "└── ", "│   ├── ", "    └── ", "│   │   └── "])
    text = "".join(rng.choices("abc  -€ü粉🦀", k=rng.randrange(200)))
    width = rng.randrange(40, 90)
    first, *rest = wrap_line(branches + text, width, breaks_words=True)
    assert all(cell_len(line) <= width for line in [first, *rest])
    assert first.startswith(branches) or not text.strip()
    below = branches.replace("├── ", "│   ").replace("└── ", "    ")
    assert all(line.startswith(below) for line in rest)
    shown = "".join([first.removeprefix(branches), *(line.removeprefix(below) for line in rest)])
    assert "".join(shown.split()) == "".join(text.split())


def terminal_lines(command, folder, num_columns, exit_code=0):
    """What a command prints in a terminal of this width."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 200, num_columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(command, cwd=folder, stdout=child, stderr=child, env=environment)
    os.close(child)
    shown = b""
    try:
        while piece := os.read(parent, 65536):
            shown += piece
    except OSError:  # Linux: the other end is closed
        pass
    os.close(parent)
    assert process.wait(timeout=240) == exit_code
    text = re.sub(r"[^\n]*\x1b\[K", "", shown.decode().replace("\r\n", "\n"))  # what was erased again
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()


@pytest.mark.parametrize("num_columns", [50, 80])
def test_in_a_real_terminal(dataset, num_columns):
    command = [sys.executable, "-m", "gristmill", "inspect", dataset, "-n", "0"]
    lines = terminal_lines(command, dataset, num_columns)
    books = lines[next(number for number, line in enumerate(lines) if line.split()[:2] == ["web", "records"]) :]
    ends = next(number for number, line in enumerate(books) if line.startswith("next:"))
    assert all(len(line) <= num_columns for line in books[:ends])
    states = json.loads((dataset / "manifest.json").read_text())["books"]["web"]
    assert [line.split()[1] for line in books if line.split()[0] in {state["step"] for state in states}] == [
        f"{state['out']:,}" for state in states
    ]


LONG = "a text of many words that no terminal of fifty columns can show in one line, " + "粉" * 30


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("plan", "recipe.yaml"), 0, "needed while it runs,"),
        (("plan", "recipe.yaml", "--set", "steps=[write: jsonl]"), 2, "write must be `key: value` pairs, not 'jsonl'"),
        (("run", "recipe.yaml", "--debug"), 0, "1 dropped as too_short"),
        (("run", "recipe.yaml", "-v", "--backend", "serial"), 0, "up to date"),
        (("inspect", "out", "-n", "1"), 0, LONG.partition(",")[0]),
        (("trace", "out", "0"), 0, LONG.partition(",")[0]),
        (("verify", "out"), 0, "all as written"),
    ],
)
def test_every_line_fits_a_phone(wide_dataset, arguments, exit_code, words):
    lines = terminal_lines([sys.executable, "-m", "gristmill", *arguments], wide_dataset, 50, exit_code)
    assert words in " ".join(" ".join(line.lstrip(" │├└─") for line in lines).split())
    # Paths and commands stay whole, to be copied.
    too_long = [line for line in lines if cell_len(line) > 50 and "gristmill" not in line and "/" not in line]
    assert not too_long


@pytest.fixture(scope="module")
def wide_dataset(tmp_path_factory, gristmill):
    """A folder with a recipe whose records and columns are wide, and its output."""
    folder = tmp_path_factory.mktemp("wide")
    names = {f"a_column_with_a_rather_long_name_{number}": LONG for number in range(5)}
    lines = [json.dumps({"text": LONG, **names}), json.dumps({"text": "tiny", **names})]
    (folder / "data.jsonl").write_text("\n".join(lines))
    (folder / "recipe.yaml").write_text(
        "{output: out, sources: {web: {read: data.jsonl}}, steps: [length: {min_chars: 9}, write: {format: jsonl}]}"
    )
    gristmill("run", "recipe.yaml", "--backend", "serial", folder=folder)
    return folder
