"""Units are cut to fit the workers, and nothing but the number of tasks shows it."""

import json
import random
import shutil

import pytest
from gristmill_testing.chat_templates import CHATML
from gristmill_testing.small_tokenizers import trained

from gristmill.engine.observer import EventLog
from gristmill.engine.parallel_run import choose_num_workers
from gristmill.pipeline.planning.units import Span, UnitLayout
from gristmill.pipeline.stages.stage_context import SliceTask
from gristmill.pipeline.stages.unit_tasks import UnitTasks
from gristmill.steps import Length, Mix, Pack, Read, Render, Shuffle, Split, Tokenize, Write

WORDS = ["mill", "grist", "flour", "stone", "wheat", "größe", "粉"]
RENDER = Render(template="chatml")
NUM_BAD = 45


def chat_lines(count, seed, bad=()):
    rng = random.Random(seed)
    for number in range(count):
        said = [" ".join(rng.choices(WORDS, k=rng.randrange(1, 30))) for _ in range(2 * rng.randrange(1, 3))]
        turns = [{"role": "assistant" if n % 2 else "user", "content": words} for n, words in enumerate(said)]
        yield json.dumps({"id": number, "messages": "nothing" if number in bad else turns}, ensure_ascii=False)


@pytest.fixture
def chats(mill, tmp_path):
    """One small file with some bad lines, which many workers share."""
    lines = list(chat_lines(400, 1, bad=(*range(100, 100 + NUM_BAD), 7, 399)))
    lines[50] = "{broken"
    lines.insert(60, "")
    (tmp_path / "chats.jsonl").write_text("\n".join(lines) + "\n")
    mill.layout = UnitLayout(slow_cell_bytes=4096, feed_bytes=0)
    return tmp_path / "chats.jsonl"


@pytest.fixture
def tasks_run(monkeypatch):
    """The payloads of all tasks that have finished."""
    payloads = []
    finish = UnitTasks.finish_task

    def note(tasks, task, result):
        payloads.append(task.payload)
        finish(tasks, task, result)

    monkeypatch.setattr(UnitTasks, "finish_task", note)
    return payloads


def run_all(mill, recipe, tasks_run, **options):
    """The files and the report of runs with 1, 2 and 7 workers, after a check that the number of tasks fits."""
    found = []
    for workers in (1, 2, 7):
        tasks_run.clear()
        found.append(mill.fresh_files(recipe, backend="threads", workers=workers, **options))
        slices = [payload for payload in tasks_run if isinstance(payload, SliceTask)]
        num_slices = sum(isinstance(payload.inputs[0], Span) for payload in slices)
        assert num_slices == 1 if workers == 1 else num_slices >= 2 * workers
    return found


@pytest.mark.parametrize(
    "steps",
    [
        [RENDER, Write(format="jsonl")],
        [RENDER, Split(validation=0.2), Write(format="jsonl", compression="zstd")],
        [RENDER, Length(min_chars=120), Write(format="parquet")],
        [RENDER, Split(validation=0.2), Write(format="arrow")],
        [RENDER, Write(format="webdataset")],
        [RENDER, Split(validation=0.2), Shuffle(), Write(format="arrow")],
        [RENDER, Split(validation=30), Write(format="jsonl")],
    ],
    ids=["jsonl", "zstd", "parquet", "arrow", "webdataset", "shuffle", "split"],
)
def test_slow_steps_share_a_small_file_by_smaller_cells(mill, chats, tasks_run, steps):
    recipe = mill.recipe({"chats": Read(read=str(chats))}, steps, max_quarantine=0.5, keep_dropped="samples")
    one, two, seven = run_all(mill, recipe, tasks_run)
    assert any(path.startswith("quarantine/") for path in one)
    assert two == one
    assert seven == one


def test_packed_rows_do_not_depend_on_the_cut(mill, chats, tasks_run, tmp_path):
    trained(tmp_path / "tokenizer", specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), chat_template=CHATML)
    steps = [RENDER, Tokenize(tokenizer=str(tmp_path / "tokenizer")), Pack(row_length=256)]
    recipe = mill.recipe({"chats": Read(read=str(chats))}, steps, max_quarantine=0.5)
    one, two, seven = run_all(mill, recipe, tasks_run)
    assert one == two == seven


def test_one_lane_of_several_sources_does_not_depend_on_the_cut(mill, chats, tasks_run, tmp_path):
    (tmp_path / "more.jsonl").write_text("\n".join(chat_lines(200, 2)) + "\n")
    sources = {"chats": Read(read=str(chats)), "more": Read(read=f"{tmp_path}/more.jsonl")}
    steps = [RENDER, Mix(weights={"chats": 1, "more": 2}, size=150, by="documents"), Write(format="arrow")]
    recipe = mill.recipe(sources, steps, max_quarantine=0.5)
    found = [mill.fresh_files(recipe, backend="threads", workers=workers) for workers in (1, 2, 7)]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("workers", "num_warnings"), [(7, 1), ("auto", 0), (1, 0)])
def test_a_run_says_why_it_uses_fewer_workers_than_asked_for(mill, tmp_path, caplog, workers, num_warnings):
    (tmp_path / "texts.jsonl").write_text('{"text": "one small task"}\n')
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/texts.jsonl")}, [Write(format="jsonl")])
    mill.run(recipe, backend="threads", workers=workers, events=EventLog(tmp_path / "events.jsonl"))
    messages = [record.getMessage() for record in caplog.records]
    assert [m.partition(": ")[2] for m in messages] == [
        "uses 1 of the 7 workers: its input makes only 1 task"
    ] * num_warnings
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    idle = [event for event in events if event["event"] == "workers_idle"]
    num_workers = choose_num_workers(workers, "threads")
    assert [(event["workers"], event["of"]) for event in idle] == ([(1, num_workers)] if num_workers > 1 else [])


class Stopped(BaseException):
    """The end of a run in the middle."""


def stop_after(monkeypatch, num_receipts):
    """Let a run end after this many receipts."""
    finish = UnitTasks.finish_task
    num_left = num_receipts

    def stop(tasks, task, result):
        nonlocal num_left
        if not num_left:
            raise Stopped
        num_left -= 1
        finish(tasks, task, result)

    monkeypatch.setattr(UnitTasks, "finish_task", stop)


@pytest.mark.parametrize(("first", "second", "num_receipts"), [(2, 7, 1), (7, 1, 3), (1, 2, 1), (7, 2, 20)])
def test_a_run_resumes_with_other_workers_and_repeats_nothing(
    mill, chats, tasks_run, monkeypatch, first, second, num_receipts
):
    sources = {"chats": Read(read=str(chats)), "more": Read(read=str(chats))}
    recipe = mill.recipe(sources, [RENDER, Split(validation=0.2), Write(format="parquet")], max_quarantine=0.5)
    expected = mill.fresh_files(recipe)
    shutil.rmtree(mill.output)
    tasks_run.clear()
    with monkeypatch.context() as patched:
        stop_after(patched, num_receipts)
        with pytest.raises(Stopped):
            mill.run(recipe, backend="threads", workers=first)
    stems = {payload.stem for payload in tasks_run}
    assert len(stems) == num_receipts
    tasks_run.clear()
    mill.run(recipe, backend="threads", workers=second)
    assert not {payload.stem for payload in tasks_run} & stems
    assert mill.files(work=False) == expected
