import json

import pytest
from gristmill_testing.streams import write_packed

from gristmill.stream import Stream


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return write_packed(tmp_path_factory.mktemp("stream") / "out", {"web": [40, 30], "code": [23]})


def test_prove(gristmill, out):
    done = gristmill("stream", "prove", out, "--world", "8,3,5", "--workers", "0,3", "--batch", "2,6", "--seed", 7)
    assert "proved: 512 rows in one order through 12 combinations" in done.out
    weighted = gristmill("stream", "prove", out, "--world", "2,1", "--mixture", "web=0.7,code=0.3", "--json").out
    proof = json.loads(weighted)
    assert proof["ok"]
    assert proof["num_rows"] == sum(leg["num_rows"] for leg in proof["legs"])


def test_prove_names_a_row_that_differs(out, monkeypatch):
    from gristmill.stream.prove import prove

    stream = Stream(out)
    assert prove(stream, [2], [0], [4])
    fast = Stream.take

    def swapped(self, rows, **options):
        return fast(self, rows[::-1].copy() if 5 in rows else rows, **options)

    monkeypatch.setattr(Stream, "take", swapped)
    proof = prove(stream, [2], [0], [4])
    assert not proof
    assert proof.different_row == 4


def test_bench(gristmill, out):
    results = json.loads(gristmill("stream", "bench", out, "--seconds", "0.05", "--json").out)
    assert [result["rows_per_second"] > 0 for result in results] == [True] * 3
    assert "rows/s" in gristmill("stream", "bench", out, "--seconds", "0.05").out


def test_where(gristmill, out, tmp_path):
    rows = json.loads(gristmill("stream", "where", out, 3, "--batch-size", 2, "--world", 2, "--json").out)
    assert [(row["row"], row["rank"]) for row in rows] == [(12, 0), (13, 0), (14, 1), (15, 1)]
    state = tmp_path / "state.json"
    state.write_text(json.dumps(Stream(out).state_dict(row=12)))
    shown = gristmill("stream", "where", out, 0, "--batch-size", 2, "--world", 2, "--rank", 1, "--state", state).out
    assert shown.startswith("row 14, rank 1: ")
    assert "tokens of /data/" in shown
    state.write_text("{")
    gristmill("stream", "where", out, 0, "--batch-size", 2, "--state", state, fails=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prove", "--world", "8,x"], "list of numbers"),
        (["prove", "--world", "0"], "world must be"),
        (["bench", "--mixture", "web"], "write web=0.7"),
        (["bench", "--split", "trian"], "did you mean"),
    ],
)
def test_wrong_use(gristmill, out, arguments, message):
    first, *rest = arguments
    assert message in gristmill("stream", first, out, *rest, fails=2).err
