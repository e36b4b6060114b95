"""Sessions of agents, written by hand in the formats of the programs that log them."""

import itertools
import json


def lines(events):
    """A log: one event a line."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def text(words):
    return {"type": "text", "text": words}


class ClaudeSession:
    """A log of Claude Code, event by event; each follows the one before it unless `after` names another."""

    def __init__(self, session="s-1"):
        self.session = session
        self.events = []
        self._numbers = itertools.count(1)
        self._last = None

    def add(self, kind, after="", **fields):
        key = f"e{next(self._numbers)}"
        parent = self._last if after == "" else after
        self._last = key
        event = {"parentUuid": parent, "isSidechain": False, "sessionId": self.session, "type": kind, "uuid": key}
        self.events.append({**event, "cwd": "/home/user/app", "version": "2.0.1", **fields})
        return key

    def note(self, kind, **fields):
        """An event that is in no chain."""
        self.events.append({"type": kind, "sessionId": self.session, **fields})

    def user(self, content, **fields):
        return self.add("user", message={"role": "user", "content": content}, **fields)

    def answer(self, *parts, turn=None, **fields):
        turn = turn or f"msg_{len(self.events)}"
        message = {"id": turn, "type": "message", "role": "assistant", "model": "m", "content": list(parts)}
        return self.add("assistant", message=message, requestId="r", **fields)

    def call(self, call_id, name="Bash", turn=None, **arguments):
        return self.answer({"type": "tool_use", "id": call_id, "name": name, "input": arguments}, turn=turn)

    def result(self, call_id, content, **fields):
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        return self.user([block], toolUseResult={"stdout": "as the interface shows it"}, **fields)

    def data(self):
        return lines(self.events)


def claude_session():
    """A question, reasoning, a call with its result, and an answer."""
    log = ClaudeSession()
    log.note("summary", summary="A fix", leafUuid="e1")
    log.user("Why does the test fail?")
    log.answer({"type": "thinking", "thinking": "I must look.", "signature": "x"}, turn="m1")
    log.answer(text("I run it."), turn="m1")
    log.call("t1", turn="m1", command="pytest")
    log.result("t1", "1 failed")
    log.answer(text("A name is wrong."))
    return log


def codex_events():
    """A rollout of Codex with instructions, reasoning, a call, a patch and an answer."""

    def item(kind, **fields):
        return {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": {"type": kind, **fields}}

    def said(role, words):
        kind = "output_text" if role == "assistant" else "input_text"
        return item("message", role=role, content=[{"type": kind, "text": words}])

    return [
        {
            "timestamp": "2026-01-01T00:00:00Z",
            "type": "session_meta",
            "payload": {
                "id": "c-1",
                "cwd": "/home/user",
                "base_instructions": {"text": "You are a coding agent."},
                "dynamic_tools": [{"name": "find", "description": "Find a file.", "inputSchema": {"type": "object"}}],
            },
        },
        {"type": "turn_context", "payload": {"model": "m"}},
        said("user", "List the files."),
        {"type": "event_msg", "payload": {"type": "user_message", "message": "List the files."}},
        item("reasoning", summary=[{"type": "summary_text", "text": "A listing."}], encrypted_content="abc"),
        said("assistant", "I look."),
        item("function_call", name="shell", arguments='{"command": ["ls"]}', call_id="c1"),
        item("function_call_output", call_id="c1", output='{"output": "a.py"}'),
        item("custom_tool_call", name="apply_patch", input="*** Begin Patch", call_id="c2"),
        item("custom_tool_call_output", call_id="c2", output="Done"),
        said("assistant", "There is a.py."),
    ]


def pi_events():
    """A session of pi with a branch."""

    def entry(key, parent, **message):
        return {"type": "message", "id": key, "parentId": parent, "timestamp": "2026-01-01", "message": message}

    return [
        {"type": "session", "version": 3, "id": "p-1", "timestamp": "2026-01-01", "cwd": "/home/user"},
        entry("a", None, role="user", content="Hello"),
        entry("b", "a", role="assistant", content=[{"type": "thinking", "thinking": "A greeting."}, text("Hi!")]),
        {"type": "model_change", "id": "c", "parentId": "b", "provider": "x", "modelId": "y"},
        entry("d", "c", role="user", content=[text("Run ls")]),
        entry(
            "e",
            "d",
            role="assistant",
            content=[{"type": "toolCall", "id": "k1", "name": "bash", "arguments": {"command": "ls"}}],
        ),
        entry("f", "e", role="toolResult", toolCallId="k1", toolName="bash", content=[text("a.py")], isError=False),
        entry("g", "f", role="assistant", content=[text("One file.")]),
        entry("h", "c", role="user", content=[text("Run pwd instead")]),
        entry("i", "h", role="assistant", content=[text("/home/user")]),
    ]


def openhands_events():
    """A trajectory of OpenHands' server."""
    return [
        {"id": 0, "source": "agent", "action": "system", "args": {"content": "You are OpenHands.", "tools": []}},
        {"id": 1, "source": "user", "action": "message", "args": {"content": "Fix it."}},
        {"id": 2, "source": "environment", "observation": "agent_state_changed", "content": ""},
        {
            "id": 3,
            "source": "agent",
            "action": "run",
            "args": {"command": "ls", "thought": "I look."},
            "tool_call_metadata": {
                "function_name": "execute_bash",
                "tool_call_id": "o1",
                "model_response": {
                    "id": "r1",
                    "choices": [
                        {
                            "message": {
                                "tool_calls": [
                                    {
                                        "id": "o1",
                                        "function": {"name": "execute_bash", "arguments": '{"command": "ls -a"}'},
                                    }
                                ]
                            }
                        }
                    ],
                },
            },
        },
        {
            "id": 4,
            "source": "agent",
            "observation": "run",
            "content": "a.py",
            "cause": 3,
            "tool_call_metadata": {"tool_call_id": "o1"},
        },
        {"id": 5, "source": "agent", "action": "read", "args": {"path": "a.py", "thought": ""}},
        {"id": 6, "source": "agent", "observation": "read", "content": "x = 1", "cause": 5},
        {"id": 7, "source": "agent", "action": "finish", "args": {"final_thought": "Done.", "outputs": {}}},
    ]


def openhands_sdk_events():
    """Events of OpenHands' SDK."""
    return [
        {
            "kind": "SystemPromptEvent",
            "id": "a",
            "source": "agent",
            "system_prompt": text("You are OpenHands."),
            "tools": [{"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}}],
        },
        {
            "kind": "MessageEvent",
            "id": "b",
            "source": "user",
            "llm_message": {"role": "user", "content": [text("Fix it.")]},
        },
        {
            "kind": "ActionEvent",
            "id": "c",
            "source": "agent",
            "thought": [text("I look.")],
            "reasoning_content": "Files first.",
            "tool_name": "terminal",
            "tool_call_id": "k1",
            "tool_call": {"id": "k1", "name": "terminal", "arguments": '{"command": "ls"}'},
            "llm_response_id": "r1",
        },
        {
            "kind": "ObservationEvent",
            "id": "d",
            "source": "environment",
            "tool_name": "terminal",
            "tool_call_id": "k1",
            "observation": {"kind": "TerminalObservation", "content": [text("a.py")]},
        },
        {
            "kind": "MessageEvent",
            "id": "e",
            "source": "agent",
            "llm_message": {"role": "assistant", "content": [text("There is a.py.")]},
        },
    ]


def chat_messages():
    """Messages of a trajectory, with a call whose arguments are JSON in a string."""
    call = {"id": "x1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    return [
        {"role": "system", "content": "You are a helper."},
        {"role": "user", "content": [text("List the files.")]},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x1", "name": "bash", "content": "a.py"},
        {"role": "assistant", "content": "There is a.py."},
    ]
