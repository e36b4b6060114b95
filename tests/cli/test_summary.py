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

import pytest
from rich.cells import cell_len

from gristmill.cli.summary import books_lines, is_short, wrap

LETTERS = "abc _-€ü粉🦀\x1b\x07\u202e"


def random_name(rng):
    return "".join(rng.choices(LETTERS, k=rng.randrange(1, 50)))


def random_counts(rng):
    return {random_name(rng): 10 ** rng.randrange(10) for _ in range(rng.randrange(8))}


def random_state(rng):
    """An account that balances."""
    dropped, quarantined, given = random_counts(rng), random_counts(rng), rng.randrange(10**10)
    num_left = given + sum(dropped.values()) + sum(quarantined.values())
    created = rng.choice([0, rng.randrange(num_left + 1)])
    return {
        "step": random_name(rng),
        "in": num_left - created,
        "created": created,
        "out": given,
        "dropped": dropped,
        "quarantined": quarantined,
        "measures": random_counts(rng),
    }


@pytest.mark.parametrize("seed", range(100))
def test_no_line_is_longer_than_the_terminal_and_nothing_in_them_steers_it(seed):
    rng = random.Random(seed)
    books = {
        random_name(rng): [random_state(rng) for _ in range(rng.randrange(1, 4))] for _ in range(rng.randrange(1, 6))
    }
    width = rng.randrange(46, 120)
    for line in books_lines(books, width):
        assert cell_len(line) <= width
        assert line.isprintable()


def numbers_in(lines):
    return [int(word.replace(",", "")) for line in lines for word in re.findall(r"\d[\d,]*(?=\s|$)", line)]


@pytest.mark.parametrize("width", [50, 80])
@pytest.mark.parametrize("seed", range(40))
def test_what_a_step_took_away_adds_up(seed, width):
    """Names are left out here: they may hold numbers of their own."""
    state = random_state(random.Random(seed))
    names = {"step": "step", "measures": {}}
    for kind in ("dropped", "quarantined"):
        names[kind] = {"abcdefgh"[number]: count for number, count in enumerate(state[kind].values())}
    lines = list(books_lines({"web": [{**state, **names}]}, width))
    num_gone = sum(state["dropped"].values()) + sum(state["quarantined"].values())
    head, step, *reasons = lines
    assert head.split()[0] == "web"
    assert (
        numbers_in([step.split("%")[0] if num_gone == 0 else step])[:2]
        == [state["out"], num_gone][: 1 + (num_gone > 0)]
    )
    if state["created"]:
        assert numbers_in([reasons[0]]) == [state["created"]]
        reasons = reasons[1:]
    shown = [int(line.split()[-1].replace(",", "")) for line in reasons]
    assert sum(shown) == num_gone
    assert len(shown) <= 5
    hidden = len(state["dropped"]) + len(state["quarantined"]) > 5
    assert hidden == is_short({"web": [{**state, **names}]})
    everything = list(books_lines({"web": [{**state, **names}]}, width, details=True))
    assert len(everything) >= len(lines)


def test_many_sources_are_a_line_each():
    steps = [{"step": "read", "in": 10, "created": 0, "out": 10, "dropped": {}, "quarantined": {}}]
    steps += [{"step": "length", "in": 10, "created": 0, "out": 7, "dropped": {"too_short": 3}, "quarantined": {}}]
    books = {f"source{number}": steps for number in range(9)}
    lines = list(books_lines(books, 50))
    assert len(lines) == 10
    assert lines[1].split() == ["source0", "7", "3"]
    assert is_short(books)
    assert sum("too_short" in line for line in books_lines(books, 50, details=True)) == 9


def test_paths_and_commands_stay_whole():
    path = "/a/rather/long/path/that-has-hyphens/and/does/not/fit/into/forty/columns"
    assert any(path in line for line in wrap(f"done: 3 rows, in {path}", 40))


def terminal_lines(command, folder, num_columns):
    """What a command prints in a terminal of this width."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 200, num_columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(command, cwd=folder, stdout=child, stderr=subprocess.DEVNULL, env=environment)
    os.close(child)
    shown = b""
    try:
        while piece := os.read(parent, 65536):
            shown += piece
    except OSError:  # Linux: the other end is closed
        pass
    os.close(parent)
    assert process.wait(timeout=240) == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).splitlines()


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
