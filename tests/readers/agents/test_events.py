"""Logs of each program: what its events become, and that no event is gone without being counted."""

import pytest
from gristmill_testing import agent_logs
from gristmill_testing.agent_logs import ClaudeSession, lines, text


def test_claude_code(read_sessions):
    sessions = read_sessions(agent_logs.claude_session().data())
    [record] = sessions.records
    call = {"id": "t1", "type": "function", "function": {"name": "Bash", "arguments": {"command": "pytest"}}}
    assert record == {
        "session": "s-1",
        "part": 0,
        "sequence": "main",
        "agent": "claude_code",
        "messages": [
            {"role": "user", "content": "Why does the test fail?"},
            {
                "role": "assistant",
                "content": "I run it.",
                "reasoning_content": "I must look.",
                "tool_calls": [call],
            },
            {"role": "tool", "content": "1 failed", "tool_call_id": "t1"},
            {"role": "assistant", "content": "A name is wrong."},
        ],
    }
    assert sessions.counters == {"skipped_summary": 1}


def test_codex(read_sessions):
    sessions = read_sessions(lines(agent_logs.codex_events()))
    [record] = sessions.records
    assert sessions.words() == [
        ("system", "You are a coding agent."),
        ("user", "List the files."),
        ("assistant", "I look."),
        ("tool", '{"output": "a.py"}'),
        ("assistant", ""),
        ("tool", "Done"),
        ("assistant", "There is a.py."),
    ]
    calls = [call["function"] for message in record["messages"] for call in message.get("tool_calls", ())]
    assert calls == [
        {"name": "shell", "arguments": {"command": ["ls"]}},
        {"name": "apply_patch", "arguments": {"input": "*** Begin Patch"}},
    ]
    assert record["messages"][2]["reasoning_content"] == "A listing."
    assert record["tools"][0]["function"]["name"] == "find"
    assert sessions.counters == {"skipped_event_msg": 1, "skipped_turn_context": 1, "summarized_reasoning": 1}


def test_old_codex_logs_have_the_items_themselves(read_sessions):
    header, *events = agent_logs.codex_events()
    items = [event["payload"] for event in events if event["type"] == "response_item"]
    old = lines([{"id": "c-1", "timestamp": "2025", "instructions": header["payload"]["base_instructions"]}, *items])
    assert read_sessions(old).words() == read_sessions(lines([header, *events])).words()


def test_a_rollback_of_codex_is_a_branch(read_sessions):
    events = agent_logs.codex_events()
    back = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}}
    again = [events[2], events[-1]]
    sessions = read_sessions(lines([*events, back, *again]))
    assert [record["sequence"] for record in sessions.records] == ["main", "main"]
    assert [len(record["messages"]) for record in sessions.records] == [7, 3]


def test_a_compaction_of_codex_begins_a_sequence(read_sessions):
    events = agent_logs.codex_events()
    kept = [events[2]["payload"], {"type": "compaction", "encrypted_content": "x"}]
    compacted = {"type": "compacted", "payload": {"message": "", "replacement_history": kept}}
    sessions = read_sessions(lines([*events, compacted, events[-1]]))
    assert [record["sequence"] for record in sessions.records] == ["main", "compaction"]
    assert sessions.words(1) == [
        ("system", "You are a coding agent."),
        ("user", "List the files."),
        ("assistant", "There is a.py."),
    ]


def test_pi_branches(read_sessions):
    sessions = read_sessions(lines(agent_logs.pi_events()))
    main, branch = sessions.records
    assert [main["part"], branch["part"]] == [0, 1]
    assert [message["content"] for message in main["messages"]] == ["Hello", "Hi!", "Run pwd instead", "/home/user"]
    assert branch["prompt"] == main["messages"][:2]
    assert [message["role"] for message in branch["completion"]] == ["user", "assistant", "tool", "assistant"]


def test_a_compaction_of_pi_keeps_the_last_entries(read_sessions):
    events = agent_logs.pi_events()[:-2]
    compaction = {
        "type": "compaction",
        "id": "j",
        "parentId": "g",
        "summary": "They said hello.",
        "firstKeptEntryId": "d",
    }
    after = [
        {"type": "message", "id": "k", "parentId": "j", "message": {"role": "user", "content": "And now?"}},
        {"type": "message", "id": "l", "parentId": "k", "message": {"role": "assistant", "content": [text("Done.")]}},
    ]
    sessions = read_sessions(lines([*events, compaction, *after]))
    _, second = sessions.records
    assert [message["content"] for message in second["prompt"]] == [
        "They said hello.\n\nRun ls",
        "",
        "a.py",
        "One file.",
    ]
    assert [message["content"] for message in second["completion"]] == ["And now?", "Done."]


@pytest.mark.parametrize("form", ["array", "lines", "row"])
def test_openhands(read_sessions, form):
    events = agent_logs.openhands_events()
    if form == "array":
        sessions = read_sessions(agent_logs.json.dumps(events, indent=1).encode(), "trajectory.json")
    else:
        sessions = read_sessions(lines(events if form == "lines" else [{"instance_id": "i", "history": events}]))
    assert sessions.words() == [
        ("system", "You are OpenHands."),
        ("user", "Fix it."),
        ("assistant", "I look."),
        ("tool", "a.py"),
        ("assistant", ""),
        ("tool", "x = 1"),
        ("assistant", "Done."),
    ]
    call = sessions.records[0]["messages"][2]["tool_calls"][0]["function"]
    assert call == {"name": "execute_bash", "arguments": {"command": "ls -a"}}  # as the model wrote it
    assert sessions.counters == {"skipped_agent_state_changed": 1, "calls_without_result": 1}


def test_openhands_sdk(read_sessions):
    sessions = read_sessions(lines(agent_logs.openhands_sdk_events()))
    [record] = sessions.records
    assert [role for role, _ in sessions.words()] == ["system", "user", "assistant", "tool", "assistant"]
    assert record["messages"][2]["reasoning_content"] == "Files first."
    assert record["tools"][0]["function"]["name"] == "terminal"


def test_a_condensation_forgets_events(read_sessions):
    events = agent_logs.openhands_sdk_events()
    condensation = {
        "kind": "Condensation",
        "id": "f",
        "source": "environment",
        "forgotten_event_ids": ["c", "d"],
        "summary": "Files were listed.",
        "summary_offset": 1,
    }
    after = [{**events[1], "id": "g"}, {**events[-1], "id": "h"}]
    sessions = read_sessions(lines([*events, condensation, *after]))
    _, second = sessions.records
    assert [message["content"] for message in second["prompt"]] == [
        "You are OpenHands.",
        "Fix it.",
        "Files were listed.",
        "There is a.py.",
    ]
    assert [message["content"] for message in second["completion"]] == ["Fix it.", "There is a.py."]


def test_unknown_events_and_parts_are_counted_by_name(read_sessions):
    log = agent_logs.claude_session()
    log.note("telepathy", thought="?")
    log.add("attachment", attachment={"type": "file"})
    log.user([{"type": "hologram"}, text("Look at this.")])
    log.answer(text("Nice."), {"type": "redacted_thinking", "data": "x"})
    sessions = read_sessions(log.data())
    assert sessions.counters == {
        "skipped_summary": 1,
        "skipped_attachment": 1,
        "unknown_event_telepathy": 1,
        "unknown_part_hologram": 1,
        "hidden_reasoning": 1,
    }


def test_any_number_of_unknown_names_is_counted(read_sessions):
    log = agent_logs.claude_session()
    for number in range(500):
        log.note(f"kind {number}")
    counters = read_sessions(log.data()).counters
    assert sum(counters.values()) == 501
    assert len(counters) < 60


def test_errors_that_the_program_wrote_are_not_answers(read_sessions):
    log = ClaudeSession()
    log.user("Hello")
    log.answer(text("API Error: 529"), isApiErrorMessage=True)
    log.answer(text("Hi!"))
    sessions = read_sessions(log.data())
    assert sessions.words() == [("user", "Hello"), ("assistant", "Hi!")]
    assert sessions.counters == {"skipped_not_for_the_model": 1}
