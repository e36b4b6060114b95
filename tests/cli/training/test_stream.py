import json
import signal

import numpy as np
import pytest
from gristmill_testing.foreign_files import write_tar
from gristmill_testing.scripts import run
from gristmill_testing.streams import write_packed
from gristmill_testing.token_datasets import write_tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.cli.main import main
from gristmill.core.errors import UsageError
from gristmill.stream import Collate, Stream
from gristmill.stream.examine import prove, simulate_ranks
from gristmill.stream.torch.loader import run_loader_workers


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return write_packed(tmp_path_factory.mktemp("stream") / "out", {"web": [40, 30], "code": [23]})


@pytest.fixture
def inside(capsys):
    """Runs a command in this process: no import of torch each time."""
    before = signal.getsignal(signal.SIGTERM)

    def run_command(*arguments, fails=(0,)):
        with pytest.raises(SystemExit) as exit_code:
            main([str(argument) for argument in arguments])
        done = capsys.readouterr()
        assert exit_code.value.code in fails, done.err
        return done

    yield run_command
    signal.signal(signal.SIGTERM, before)


def test_prove(gristmill, inside, out):
    done = gristmill("stream", "prove", out, "--world", "3,2", "--workers", "0,2", "--batch", "2,6", "--seed", 7)
    assert "proved: 160 rows in one order through 8 combinations" in done.out
    assert "(worker processes of a DataLoader)" in done.out
    arguments = ["--world", "2,1", "--workers", "0,2", "--mixture", "web=0.7,code=0.3", "--simulate", "--json"]
    proof = json.loads(inside("stream", "prove", out, *arguments).out)
    assert (proof["ok"], proof["workers"]) == (True, "simulated")
    assert proof["num_rows"] == sum(run["num_rows"] for run in proof["runs"])
    assert proof["num_tokens"] == int(
        Stream(out, mixture={"web": 0.7, "code": 0.3}).rows(0, proof["num_rows"]).tokens.sum()
    )


def test_prove_without_torch(out):
    script = "import sys; sys.modules['torch'] = None; from gristmill.cli.main import main; main()"
    done = run("-c", script, "stream", "prove", str(out), "--world", "2,1", "--batch", "2")
    assert done.returncode == 0, done.stderr
    assert "workers simulated" in done.stdout


def swapped_rows(stream, rows, **options):
    return Stream.fast(stream, rows[::-1].copy() if 5 in rows else rows, **options)


def other_labels(stream, rows, **options):
    batch = Stream.fast(stream, rows, **options)
    batch["labels"][np.asarray(rows) == 6] += 1
    return batch


def fewer_tokens(stream, rows, **options):
    batch = Stream.fast(stream, rows, **options)
    batch.tokens[np.asarray(rows) == 7] -= 1
    return batch


def later_state(stream, rows, **options):
    batch = Stream.fast(stream, rows, **options)
    batch.next_row += 1
    return batch


@pytest.mark.parametrize(
    ("broken", "row", "what"),
    [
        (swapped_rows, 4, "input_ids"),
        (other_labels, 6, "labels"),
        (fewer_tokens, 7, "tokens"),
        (later_state, 16, "state"),
    ],
)
@pytest.mark.parametrize("how", [simulate_ranks, run_loader_workers])
@pytest.mark.parametrize("workers", [0, 2])
def test_prove_names_a_row_that_differs(tmp_path, monkeypatch, broken, row, what, how, workers):
    same_length = [[[n + 1] * 12] for n in range(30)]  # so that swapped rows differ in their ids alone
    stream = Stream(write_tokens(tmp_path / "out", {("train", "web"): [same_length]}, row_length=12))
    assert prove(stream, [2], [workers], [4], read_ranks=how)
    monkeypatch.setattr(Stream, "fast", Stream.take, raising=False)
    monkeypatch.setattr(Stream, "take", broken)
    if (broken, how, workers) == (later_state, run_loader_workers, 0):  # the stream itself sees that
        with pytest.raises(UsageError, match="something else has moved it"):
            prove(stream, [2], [workers], [4], read_ranks=how)
        return
    proof = prove(stream, [2], [workers], [4], read_ranks=how)
    assert not proof
    assert (proof.different_row, proof.different_in) == (row, what)


@pytest.mark.parametrize(
    "options", [{"labels": "shifted"}, {"learn_first_token": False}, {"labels": "shifted", "learn_first_token": False}]
)
def test_prove_knows_all_labels(tmp_path, options):
    folder = write_packed(tmp_path / "out", {"chats": [30]}, loss_masks=True)
    assert prove(Stream(folder, rows=70, collate=Collate(**options)), [3, 1], [0], [4], steps=9)


@pytest.mark.parametrize("window", [1, 3, 99])
def test_prove_knows_shuffled_blocks(tmp_path, window):
    folder = write_packed(tmp_path / "out", {"web": [30, 7], "code": [9]})
    for options in ({}, {"mixture": {"web": 1, "code": 1}}):
        assert prove(Stream(folder, rows=100, seed=3, shuffle={"blocks": window}, **options), [3, 1], [0], [4], steps=9)


def test_several_datasets_and_selections(inside, out, tmp_path):
    other = write_packed(tmp_path / "other", {"books": [12]}, seed=3)
    several = [f"here={out}:0.75", f"there={other}:0.25"]
    rows = json.loads(inside("stream", "where", *several, 0, "--batch-size", 8, "--json").out)
    assert sum(row["source"] == "there" for row in rows) == 2
    assert "proved" in inside("stream", "prove", *several, "--world", "2,1", "--batch", 2, "--simulate").out
    bench = inside("stream", "bench", *several, "--seconds", 0.05, "--workers", 0, "--json").out
    assert len(json.loads(bench)["measurements"]) == 4
    plain = [f"here={out}", f"there={other}", "--mixture", "here=1,there=1", "--weights-in", "tokens"]
    rows = json.loads(inside("stream", "where", *plain[:2], 0, *plain[2:], "--batch-size", 8, "--json").out)
    assert {row["source"] for row in rows} == {"here/web", "here/code", "there"}
    chosen = ["--sources", "code", "--no-shuffle", "--batch-size", 4, "--json"]
    rows = json.loads(inside("stream", "where", out, 1, *chosen).out)
    assert [(row["source"], row["shard_row"]) for row in rows] == [("code", n) for n in (4, 5, 6, 7)]


def test_epochs_by_source(inside, out):
    words = ["--mixture", "epochs:web=1,code=2", "--batch-size", 40, "--json"]
    rows = json.loads(inside("stream", "where", out, 0, *words).out)
    expected = Stream(out, mixture={"epochs": {"web": 1, "code": 2}}).where(0, batch_size=40)
    assert [(row["source"], row["shard_row"]) for row in rows] == [(row.source, row.shard_row) for row in expected]


def test_where_takes_weights_and_seed_from_the_state(inside, out, tmp_path):
    stream = Stream(out, mixture=[(0, {"web": 1, "code": 0}), (10, {"web": 0, "code": 1})], seed=9)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(stream.state_dict(row=8)))
    rows = json.loads(inside("stream", "where", out, 0, "--batch-size", 4, "--state", state, "--json").out)
    stream.load_state_dict(stream.state_dict(row=8))
    assert [(row["row"], row["shard_row"]) for row in rows] == [
        (row.row, row.shard_row) for row in stream.where(0, batch_size=4)
    ]
    assert [row["source"] for row in rows] == ["web", "web", "code", "code"]


def test_bench_of_samples_says_what_to_do_here(inside, tmp_path):
    write_tar(tmp_path / "a.tar", [(0, [("txt", b"text")])])
    said = inside("stream", "bench", tmp_path / "a.tar", fails=(2,)).err
    assert "gristmill run" in said
    assert "Traceback" not in said


def test_bench(gristmill, out):
    result = json.loads(gristmill("stream", "bench", out, "--seconds", "0.05", "--workers", "0,2", "--json").out)
    assert [entry["loader"] for entry in result["measurements"]] == [
        *["this process"] * 3,
        "TorchLoader, 1 thread",
        "DataLoader, 2 workers",
    ]
    assert all(entry["rows_per_second"] > 0 and entry["bytes_per_row"] is None for entry in result["measurements"])
    text = gristmill("stream", "bench", out, "--seconds", "0.05", "--workers", "0").out
    assert "tokens/s" in text
    assert "fastest here" in text


def test_where(gristmill, out, tmp_path):
    rows = json.loads(gristmill("stream", "where", out, 3, "--batch-size", 2, "--world", 2, "--json").out)
    assert [(row["row"], row["rank"]) for row in rows] == [(12, 0), (13, 0), (14, 1), (15, 1)]
    state = tmp_path / "state.json"
    state.write_text(json.dumps(Stream(out).state_dict(row=12)))
    shown = gristmill("stream", "where", out, 0, "--batch-size", 2, "--world", 2, "--rank", 1, "--state", state).out
    assert shown.startswith("row 14, rank 1: ")
    assert "tokens of /data/" in shown
    stream = Stream(out, epochs=2)
    last = stream.num_steps(7) - 1  # the last batch of an epoch is shorter
    rows = json.loads(gristmill("stream", "where", out, last, "--batch-size", 7, "--epochs", 2, "--json").out)
    assert [row["row"] for row in rows] == [row.row for row in stream.where(last, 7)]
    assert rows[-1]["row"] == len(stream) - 1
    state.write_text("{")
    gristmill("stream", "where", out, 0, "--batch-size", 2, "--state", state, fails=2)


WRONG = [
    (["prove", "OUT", "--world", "8,x"], "list of numbers"),
    (["prove", "OUT", "--world", "0"], "world must be"),
    (["prove", "OUT", "--batch", "99999999999"], "batch_size must be"),
    (["prove", "OUT", "--workers", "-1"], "workers must be"),
    (["prove", "OUT", "--world", ""], "list of numbers"),
    (["bench", "OUT", "--mixture", "web"], "write web=0.7"),
    (["bench", "OUT", "--mixture", "web=1,web=2"], "twice"),
    (["bench", "OUT", "--mixture", "web=nan,code=1"], "must be a number"),
    (["bench", "OUT", "--split", "trian"], "did you mean"),
    (["bench", "OUT", "--sources", "wob"], "did you mean"),
    (["bench", "OUT", "--weights-in", "bytes"], "weights-in"),
    (["bench", "OUT", "--seed", "9" * 30], "seed must be"),
    (["bench", "OUT", "--batch-size", "9" * 30], "batch_size must be"),
    (["bench", "a=OUT:1", "b=OUT"], "no weight for b"),
    (["bench", "a=OUT:1", "a=OUT:1"], "called a"),
    (["bench", "OUT", "OUT"], "not a dataset with a name"),
    (["bench", "nowhere"], "nowhere"),
    (["where", "OUT", "9" * 30, "--batch-size", "2"], "step must be"),
    (["where", "OUT", str(2**61), "--batch-size", "8"], "must be at most"),
    (["where", "OUT", "0", "--batch-size", "2", "--world", "2", "--rank", "2"], "rank 2 is not below the world size 2"),
    (["where", "OUT", "0", "--batch-size", "16777216", "--world", "16777216"], "in one call"),
    (["where", "OUT", "0", "--batch-size", "2", "--state", "STATE"], "not the state of a stream"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_use(inside, out, tmp_path, arguments, message):
    (tmp_path / "state").write_text('{"row": 1e300, "phases": [], "seed": 0}')
    given = [text.replace("OUT", str(out)).replace("STATE", str(tmp_path / "state")) for text in arguments]
    assert message in inside("stream", *given, fails=(2,)).err


WORDS = [
    "OUT",
    "a=OUT",
    "b=OUT:2",
    "a=:",
    "=",
    "0",
    "-1",
    "3",
    "1e3",
    "nan",
    "9" * 25,
    "",
    "web",
    "web=1,code=2",
    "2,3",
]
FLAGS = """--split --sources --seed --mixture --weights-in --no-shuffle --batch-size --world --rank --state --json
    --workers --batch --steps --simulate --size --by --max-epochs"""


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    command=st.sampled_from(["where", "prove", "mix"]),
    tail=st.lists(st.sampled_from(WORDS + FLAGS.split()), max_size=9),
)
def test_no_arguments_give_a_traceback(inside, out, tmp_path, monkeypatch, command, tail):
    """`main` lets only SystemExit out, with the codes for done, failed and wrong use."""
    monkeypatch.chdir(tmp_path)
    given = [text.replace("OUT", str(out)) for text in tail]
    given = {"where": [str(out), "1", "--batch-size", "2"], "prove": [str(out), "--simulate"], "mix": ["mixed"]}[
        command
    ] + given
    inside(*([command] if command == "mix" else ["stream", command]), *given, fails=(0, 1, 2))
