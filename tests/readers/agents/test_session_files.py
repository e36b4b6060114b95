"""Files of sessions: told by content, the same for any cells, and every byte accounted for."""

import gzip
import json

import pytest
from gristmill_testing import agent_logs
from gristmill_testing.agent_logs import chat_messages, claude_session, lines
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill import steps
from gristmill.readers.agents.session_files import DOCUMENT, LOG, ROWS, find_kind
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.steps import Read

MESSAGES = chat_messages()
EXPECTED = [
    ("system", "You are a helper."),
    ("user", "List the files."),
    ("assistant", "I look."),
    ("tool", "a.py"),
    ("assistant", "There is a.py."),
]
ROW_FORMS = {
    "messages": {"instance_id": "i", "messages": MESSAGES},
    "messages as text": {"instance_id": "i", "messages": json.dumps(MESSAGES)},
    "trajectory": {"instance_id": "i", "trajectory": MESSAGES},
    "swe-agent": {"instance_id": "i", "trajectory": [{"query": MESSAGES, "action": "ls"}], "history": MESSAGES},
}


@pytest.mark.every_case
@pytest.mark.parametrize("form", ROW_FORMS)
def test_rows(read_sessions, form):
    sessions = read_sessions(lines([ROW_FORMS[form]] * 3))
    assert [sessions.words(index) for index in range(3)] == [EXPECTED] * 3
    assert all(record.keys() == {"instance_id", "messages"} for record in sessions.records)
    assert sessions.records[0]["messages"][2]["tool_calls"][0]["function"]["arguments"] == {"command": "ls"}


@pytest.mark.parametrize("indent", [None, 1])
def test_a_trajectory_of_swe_agent_is_one_object(read_sessions, indent):
    data = json.dumps(ROW_FORMS["swe-agent"], indent=indent).encode()
    sessions = read_sessions(data, "a.traj")
    assert (sessions.words(), sessions.positions) == (EXPECTED, [0])


def test_rollouts_keep_prompt_completion_and_reward(read_sessions):
    rollout = {"prompt": MESSAGES[:2], "completion": json.dumps(MESSAGES[2:]), "reward": 0.5}
    [record] = read_sessions(lines([rollout])).records
    assert record["reward"] == 0.5
    assert [message["role"] for message in record["prompt"]] == ["system", "user"]
    assert [message["role"] for message in record["completion"]] == ["assistant", "tool", "assistant"]


def test_an_array_of_rows(read_sessions):
    data = json.dumps([ROW_FORMS["messages"], 7, ROW_FORMS["trajectory"], {"x": 1}], indent=2).encode()
    sessions = read_sessions(data, "rows.json")
    assert [sessions.words(0), sessions.words(1)] == [EXPECTED] * 2
    assert sessions.reasons == ["not_an_object", "not_a_session"]
    assert all(data[position : position + 1] == b"{" for position in sessions.positions)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (claude_session().data(), LOG),
        (b'{"broken\n' + claude_session().data(), LOG),
        (lines(agent_logs.codex_events()), LOG),
        (lines([ROW_FORMS["messages"]]), ROWS),
        (b"[]", DOCUMENT),
        (b'{\n "history": []\n}', DOCUMENT),
        (b'{"history": [],\n "info": {}\n}', DOCUMENT),
        (b"", ROWS),
        (b"no json", ROWS),
    ],
)
def test_kinds(tmp_path, content, kind):
    for name, data in (("a.jsonl", content), ("a.jsonl.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(data)
        assert find_kind(str(tmp_path / name)) == kind


@settings(max_examples=30, deadline=None)
@given(cell_bytes=st.integers(50, 4000), data=st.data())
def test_any_cells_of_rows_give_the_same(read_sessions, cell_bytes, data):
    content = lines([{"n": number, "messages": MESSAGES[: 1 + number % 5]} for number in range(20)])
    cut = data.draw(st.integers(0, -(-len(content) // cell_bytes)))
    whole = read_sessions(content)
    parts = read_sessions(content, cell_bytes=cell_bytes, borders=(0, cut, None))
    assert (parts.records, parts.positions) == (whole.records, whole.positions)


DAMAGES = [b"\xff", b"\x00\x00", b'"', b"", b"}", b"\n", b"x" * 300]
FILES = {
    "claude.jsonl": claude_session().data(),
    "codex.jsonl": lines(agent_logs.codex_events()),
    "pi.jsonl": lines(agent_logs.pi_events()),
    "openhands.jsonl": lines(agent_logs.openhands_sdk_events()),
    "openhands.json": json.dumps(agent_logs.openhands_events()).encode(),
    "rows.jsonl": lines([ROW_FORMS[form] for form in ROW_FORMS]),
    "a.traj": json.dumps(ROW_FORMS["swe-agent"], indent=1).encode(),
    "rows.jsonl.gz": gzip.compress(lines([ROW_FORMS[form] for form in ROW_FORMS])),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", FILES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_byte_of_a_damaged_file_is_accounted_for(read_sessions, name, data):
    """Each line, or the rest of the file, is in a record, counted by the name of its event, or quarantined."""
    content = FILES[name]
    at = data.draw(st.integers(0, len(content) - 1))
    damaged = content[:at] + data.draw(st.sampled_from(DAMAGES)) + content[at + data.draw(st.integers(0, 40)) :]
    max_record_bytes = data.draw(st.sampled_from([200, 64 << 20]))
    sessions = read_sessions(damaged, name, max_record_bytes=max_record_bytes)
    whole = read_sessions(content, name)
    num_messages = sum(map(count_messages, sessions.records))
    num_lost = sum(map(count_messages, whole.records)) - num_messages
    counted = sum(sessions.counters.values()) - sum(whole.counters.values()) + sessions.num_blank
    assert num_lost <= 0 or sessions.bad or counted > 0
    if sessions.reasons == ["too_large"] and name != "rows.jsonl":
        assert sessions.bad[0].num_bytes > max_record_bytes


def count_messages(record):
    return sum(len(record.get(key, ())) for key in ("messages", "prompt", "completion"))


def test_a_message_of_50_megabytes(read_sessions):
    log = claude_session()
    log.call("big", command="cat")
    log.result("big", "x" * (50 << 20))
    log.answer(agent_logs.text("That was long."))
    sessions = read_sessions(log.data())
    assert len(sessions.words()[-2][1]) == 50 << 20
    assert not sessions.bad
    limited = read_sessions(log.data(), max_record_bytes=1 << 20)
    assert limited.reasons == ["too_large", "lost_context"]
    assert limited.words() == sessions.words()[:-2]


def test_a_file_that_is_no_session_is_quarantined(read_sessions):
    sessions = read_sessions(lines([{"text": "a document"}, {"text": "another"}]))
    assert (sessions.records, sessions.reasons) == ([], ["not_a_session"] * 2)
    assert "text" in sessions.bad[0].message


CALLS = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content }}{{ m.content }}"
    "{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_run_trains_on_sessions(tmp_path):
    """A recipe over a folder of logs: the books have what was skipped, and a warning names what is unknown."""
    for number in range(3):
        log = claude_session()
        log.note("telepathy")
        (tmp_path / f"{number}.jsonl").write_bytes(log.data())
    (tmp_path / "calls.jinja").write_text(CALLS)
    recipe = gm.Recipe(
        sources={"sessions": steps.Read(read=str(tmp_path / "*.jsonl"), format="agent")},
        steps=[steps.Render(template=str(tmp_path / "calls.jinja")), steps.Write(format="jsonl")],
        output=str(tmp_path / "out"),
    )
    result = gm.run(recipe, backend="serial")
    [read, *_] = result.manifest.books["sessions"]
    assert (read.records_out, read.counters["skipped_summary"]) == (3, 3)
    [warning] = result.warnings
    assert "telepathy" in warning
    rows = list(result.dataset())
    assert len(rows) == 3
    assert all('"pytest"' in row["text"] for row in rows)


@pytest.mark.parametrize("name", ["claude.jsonl", "rows.jsonl", "openhands.json"])
def test_pieces_of_a_compressed_file_give_the_same(new_file, unpack, ranges, name):
    """A log stays one cell, whatever the cells of rows are."""
    file = new_file(f"{name}.gz", gzip.compress(FILES[name]))
    read = Read(read=file.path, format="agent")
    schema = plan_schema(read, [file], keeps_record=True, has_text=False)
    whole = ranges(open_reader(read, file, schema, cell_bytes=700), [0, None])
    pieces = unpack(read, file, 1, 700)
    assert (len(pieces) > 1) == (name == "rows.jsonl")
    parts = [ranges(open_reader(read, file, schema, piece=piece, cell_bytes=700), [0, None]) for piece in pieces]
    assert [record for part in parts for record in part.records] == whole.records
    assert len(whole.records) == (len(ROW_FORMS) if name == "rows.jsonl" else 1)
