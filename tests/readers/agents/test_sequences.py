"""Sequences of sessions: each answer once, results after their calls, and nothing trained without its context."""

from collections import Counter

from gristmill_testing.agent_logs import ClaudeSession, claude_session, lines, text
from hypothesis import given, settings
from hypothesis import strategies as st


def find_trained(record):
    return record.get("completion") or record["messages"]


def test_a_subagent_has_a_sequence_of_its_own(read_sessions):
    log = claude_session()
    last = log.events[-1]["uuid"]
    log.user("Search the code.", after=None, isSidechain=True)
    log.answer(text("Found it."), isSidechain=True)
    log.user("Thanks.", after=last)
    log.answer(text("Bye."))
    sessions = read_sessions(log.data())
    assert [record["sequence"] for record in sessions.records] == ["main", "sidechain"]
    assert sessions.words(0)[-2:] == [("user", "Thanks."), ("assistant", "Bye.")]
    assert sessions.words(1) == [("user", "Search the code."), ("assistant", "Found it.")]


def test_a_compaction_begins_a_sequence_with_its_summary(read_sessions):
    log = claude_session()
    log.add("system", after=None, subtype="compact_boundary", content="Conversation compacted")
    log.user("This session continues an earlier one: a name was wrong.", isCompactSummary=True)
    log.answer(text("I rename it."))
    sessions = read_sessions(log.data())
    assert [record["sequence"] for record in sessions.records] == ["main", "compaction"]
    assert [role for role, _ in sessions.words(1)] == ["user", "assistant"]
    assert sessions.positions == sorted(set(sessions.positions))


def test_a_branch_repeats_its_context_as_a_prompt(read_sessions):
    log = ClaudeSession()
    log.user("One")
    first = log.answer(text("1"))
    log.user("Two")
    log.answer(text("2"))
    log.user("Three", after=first)
    log.answer(text("3"))
    sessions = read_sessions(log.data())
    main, branch = sessions.records
    assert [message["content"] for message in main["messages"]] == ["One", "1", "Three", "3"]
    assert (branch["sequence"], branch["prompt"]) == ("branch", main["messages"][:2])
    assert [message["content"] for message in branch["completion"]] == ["Two", "2"]


def test_results_of_parallel_calls_are_no_branches(read_sessions):
    log = ClaudeSession()
    log.user("Go")
    one = log.call("t1", turn="m", command="a")
    two = log.call("t2", turn="m", command="b")
    log.result("t2", "second", after=two)
    log.result("t1", "first", after=one)
    log.answer(text("Both."))
    sessions = read_sessions(log.data())
    [record] = sessions.records
    assert len(record["messages"][1]["tool_calls"]) == 2
    assert sessions.words()[2:] == [("tool", "first"), ("tool", "second"), ("assistant", "Both.")]
    assert not sessions.counters


def test_events_out_of_order(read_sessions):
    log = claude_session()
    [_, question, *rest] = log.events
    [expected] = read_sessions(log.data()).records
    for events in ([question, *rest[::-1]], [*rest, question], [*rest[::-1], question]):
        sessions = read_sessions(lines(events))
        assert [record["messages"] for record in sessions.records] == [expected["messages"]]
        assert not sessions.bad


def test_a_result_without_a_call_is_quarantined(read_sessions):
    log = claude_session()
    log.result("t9", "of nothing")
    log.answer(text("Strange."))
    sessions = read_sessions(log.data())
    assert sessions.reasons == ["result_without_call"]
    assert sessions.words()[-1] == ("assistant", "Strange.")


def test_a_lost_line_costs_what_follows_it(read_sessions):
    log = claude_session()
    whole = log.data().splitlines(keepends=True)
    broken = whole[5][:30] + b"\n"  # the result of the call
    log.events[5]["message"] = None
    data = b"".join([*whole[:5], broken, *whole[6:]])
    sessions = read_sessions(data)
    assert sessions.reasons == ["invalid_json", "lost_context"]
    assert [role for role, _ in sessions.words()] == ["user", "assistant"]
    assert sessions.bad[1].num_bytes == len(whole[6]) - 1


def test_a_session_that_is_cut_in_a_line_loses_that_line_only(read_sessions):
    data = claude_session().data()
    whole = read_sessions(data)
    last = len(data.splitlines(keepends=True)[-1])
    for size in (last - 1, last // 2, 2):
        sessions = read_sessions(data[: len(data) - size])
        assert sessions.reasons == ["invalid_json"]
        assert sessions.words() == whole.words()[:-1]


def test_a_log_that_begins_in_the_middle(read_sessions):
    log = claude_session()
    del log.events[:3]
    sessions = read_sessions(log.data())
    assert sessions.counters["missing_parents"] == 1
    assert sessions.words()[-1] == ("assistant", "A name is wrong.")


def test_events_in_a_circle_are_quarantined(read_sessions):
    log = claude_session()
    log.user("A", after="e99")
    log.events[-1] |= {"uuid": "x", "parentUuid": "y"}
    log.answer(text("B"))
    log.events[-1] |= {"uuid": "y", "parentUuid": "x"}
    sessions = read_sessions(log.data())
    assert sessions.reasons == ["event_cycle"]
    assert len(sessions.records) == 1


def test_a_resumed_session_repeats_its_history_once(read_sessions):
    log = claude_session()
    log.events += log.events[1:]
    sessions = read_sessions(log.data())
    assert sessions.counters["repeated_events"] == 6
    assert len(sessions.records) == 1


def test_a_log_without_messages_is_blank(read_sessions):
    log = ClaudeSession()
    log.note("summary", summary="A title", leafUuid="e1")
    sessions = read_sessions(log.data())
    assert (sessions.records, sessions.num_blank) == ([], 1)
    assert sessions.counters == {"skipped_summary": 1, "sessions_without_messages": 1}


@st.composite
def random_sessions(draw):
    """A log with branches, subagents, compactions, calls, and lines in any order."""
    log = ClaudeSession()
    known = [None]
    for number in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["user", "answer", "call", "side", "compaction", "note"]))
        after = draw(st.sampled_from(known[-4:]))
        if kind == "user":
            known.append(log.user(f"question {number}", after=after))
        elif kind == "answer":
            known.append(log.answer(text(f"answer {number}"), after=after))
        elif kind == "call":
            log.user(f"question {number}", after=after)
            log.call(f"t{number}", command=f"answer {number}")
            known.append(log.result(f"t{number}", f"result {number}"))
        elif kind == "side":
            log.user(f"task {number}", after=None, isSidechain=True)
            log.answer(text(f"answer {number}"), isSidechain=True)
        elif kind == "compaction":
            log.add("system", after=None, subtype="compact_boundary")
            known.append(log.user(f"summary {number}", isCompactSummary=True))
        else:
            log.note(f"kind {number}")
    events = draw(st.permutations(log.events)) if draw(st.booleans()) else log.events
    return log.events, lines(events)


@settings(max_examples=200, deadline=None)
@given(session=random_sessions())
def test_each_answer_is_in_one_sequence(read_sessions, session):
    events, data = session
    expected = Counter()
    for event in events:
        for part in event.get("message", {}).get("content", ()):
            if event["type"] == "assistant":
                expected[part.get("text") or part["input"]["command"]] += 1
    sessions = read_sessions(data)
    trained = Counter()
    for record in sessions.records:
        for message in find_trained(record):
            if message["role"] == "assistant":
                trained.update(words for words in message["content"].split("\n\n") if words)
                trained.update(call["function"]["arguments"]["command"] for call in message.get("tool_calls", ()))
    assert trained == expected
    assert not sessions.bad
    assert sessions.positions == sorted(set(sessions.positions))
    assert [record["part"] for record in sessions.records] == list(range(len(sessions.records)))
    notes = sum(event["type"].startswith("kind") for event in events)
    assert sum(count for name, count in sessions.counters.items() if name.startswith("unknown_event")) == notes


@settings(max_examples=100, deadline=None)
@given(session=random_sessions(), data=st.data())
def test_no_answer_follows_another_context_than_its_own(read_sessions, session, data):
    """A damaged line may cost answers, but none of the others gets a context that it did not have."""
    _, content = session
    whole = {chain for record in read_sessions(content).records for chain in list_chains(record)}
    at = data.draw(st.integers(0, len(content) - 1))
    damaged = content[:at] + b"\xff" + content[at + 1 :]
    sessions = read_sessions(damaged)
    chains = {chain for record in sessions.records for chain in list_chains(record)}
    if not sessions.counters["missing_parents"]:  # lines in any order: a child may stand before what is lost
        assert chains <= whole | {("",)}


def list_chains(record):
    """For each answer that is trained all words up to it."""
    messages = [*record.get("prompt", ()), *find_trained(record)]
    first = len(record.get("prompt", ()))
    texts = [message["content"] for message in messages]
    return [tuple(texts[: end + 1]) for end in range(first, len(texts)) if messages[end]["role"] == "assistant"]
