"""A plan: what a recording has found out, as a generated Python function of a record's texts.

    def fill(c):
        if (k[0] in c[1]): return None
        return [k[1], c[0], k[2], c[1].strip(), k[3]]

`c` are the texts of a record, `k` the constants: the source has no text of a template or of a record in it, only names
of operations from a fixed list, and numbers of constants. It runs without builtins. About 1 µs for a short chat.

A plan for one length of chat can be stretched to another: pieces of its middle are repeated or left out. A template
that does not know how many messages there are (`tracing/environment.py`) writes the messages after the first few and
before the last one alike, every second one:

    messages    0 1 2 3  4 5 4 5 … 4 5  last          of chats in which two roles take turns
    pieces      0 1 2 3 4  5 6 5 6 … 5 6  last two      piece 5 is between the messages 4 and 5

So the texts around the messages of a chat of 8 are those of a chat of 38, and so are the places in them. 20 µs for a
new length, where a trace with its search for answers takes 1,000.

A conversation is taken apart into its texts and its outline, which together decide what a template writes:

    {"role": "user", "content": "Hi"}    texts: Hi    outline: a dict of role = "user" and content = a text

Roles and types of parts are of the outline, because templates branch on them; so are keys, numbers and nulls. Two
conversations with the same outline are rendered by the same plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.text.chats.tracing.environment import NUM_HEAD
from gristmill.text.chats.tracing.recording import CONSTANT, LEAF, METHODS, OPERATIONS, OpaqueText, quote_json

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from types import CodeType

    from gristmill.text.chats.tracing.recording import Node, Recording


STRIPPED = "strip"
GuardFunction = Callable[[Sequence[str]], list[str] | None]
"""A generated function of texts: None if they do not give the answers of the guards."""


class TextPlan:
    """A way through a template: the guards that lead there, and the pieces that it writes."""

    def __init__(self, recording: Recording, output: Sequence[int]) -> None:
        """`output` are the nodes whose texts, one after the other, are the rendering."""
        self._nodes = recording.nodes
        self._guards = recording.guards
        self._output = output
        self.num_uses = 0
        self.num_chars = sum(len(text) for node in self._nodes for text in node[2] if isinstance(text, str))
        """Number of characters of all constants."""

    @cached_property
    def fill(self) -> GuardFunction:
        """Return the pieces of a record's text; None if it does not give the answers of the guards."""
        return _PlanWriter(self._nodes).write(self._guards, self._output)

    @cached_property
    def are_guards_met(self) -> GuardFunction | None:
        """Like `fill`, without the pieces: an empty list or None. None instead of a function: there are no guards."""
        return _PlanWriter(self._nodes).write(self._guards, ()) if self._guards else None

    def split_guards(self, num_texts: int) -> list[GuardFunction | None] | None:
        """For each text of a record a function that asks the questions about it alone, like `are_guards_met`.

        Texts that are asked the same have the same function. Returns None if a question is about several texts.
        """
        questions: list[list[tuple[int, Any]]] = [[] for _ in range(num_texts)]
        leaves, numbers = list[set[int]](), list[int]()
        known: dict[Node, int] = {}
        for operation, operands, constants in self._nodes:
            leaves.append({constants[0]} if operation == LEAF else set().union(*(leaves[other] for other in operands)))
            alike = (LEAF, (), ()) if operation == LEAF else (operation, tuple(numbers[n] for n in operands), constants)
            numbers.append(known.setdefault(alike, len(numbers)))
        functions: dict[Hashable, GuardFunction] = {}
        nodes = [(LEAF, (), (0,)) if node[0] == LEAF else node for node in self._nodes]
        for number, answer in self._guards:
            if len(leaves[number]) != 1:
                return None
            questions[min(leaves[number])].append((number, answer))
        split: list[GuardFunction | None] = []
        for asked in questions:
            key = tuple([(numbers[number], type(answer), answer) for number, answer in asked])
            if asked and key not in functions:
                functions[key] = _PlanWriter(nodes).write(asked, ())
            split.append(functions[key] if asked else None)
        return split

    def list_pieces(self) -> list[str | tuple[int, bool]]:
        """List the pieces: a constant, or the number of a leaf with whether it is stripped.

        Returns an empty list if a piece is computed in another way.
        """
        pieces: list[str | tuple[int, bool]] = []
        for number in self._output:
            operation, operands, constants = self._nodes[number]
            if operation == CONSTANT:
                pieces.append(constants[0])
            elif operation == LEAF:
                pieces.append((constants[0], False))
            elif operation == STRIPPED and not constants and self._nodes[operands[0]][0] == LEAF:
                pieces.append((self._nodes[operands[0]][2][0], True))
            else:
                return []
        return pieces


class _PlanWriter:
    """Writes the source of a plan. Nodes that are used more than once become local variables."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._constants: list[Any] = []
        self._lines: list[str] = []
        self._uses: Counter[int] = Counter()
        self._variables: dict[int, str] = {}

    def write(self, guards: Sequence[tuple[int, Any]], output: Sequence[int]) -> GuardFunction:
        roots = [*(number for number, _ in guards), *output]
        self._count_uses(roots)
        for number, answer in guards:
            question = self._express(number)
            if type(answer) is bool:
                self._lines.append(f"if {'not ' if answer else ''}{question}: return None")
            else:
                self._lines.append(f"if {question} != {self._constant(answer)}: return None")
        pieces = ", ".join([self._express(number) for number in output])
        body = "\n    ".join([*self._lines, f"return [{pieces}]"])
        names: dict[str, Any] = {"__builtins__": {}, "k": self._constants}
        names |= {"len": len, "str": str, "quote_json": quote_json}
        exec(_compile_source(f"def fill(c):\n    {body}\n"), names)
        function: GuardFunction = names["fill"]
        return function

    def _count_uses(self, roots: Sequence[int]) -> None:
        waiting = list(roots)
        while waiting:
            number = waiting.pop()
            self._uses[number] += 1
            if self._uses[number] == 1:
                waiting += self._nodes[number][1]

    def _express(self, root: int) -> str:
        """Write the expression of a node. Operands come first, without recursion: chains may be long."""
        waiting = [root]
        written: dict[int, str] = {}
        while waiting:
            number = waiting[-1]
            if number in written or number in self._variables:
                waiting.pop()
                continue
            missing = [
                operand
                for operand in self._nodes[number][1]
                if operand not in written and operand not in self._variables
            ]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            operands = [self._variables.get(operand) or written[operand] for operand in self._nodes[number][1]]
            source = self._write_operation(number, operands)
            # Deep expressions, too: the parser of Python has a limit on nesting.
            if self._nodes[number][0] not in (LEAF, CONSTANT) and (self._uses[number] > 1 or number != root):
                self._variables[number] = f"v{number}"
                self._lines.append(f"v{number} = {source}")
            else:
                written[number] = source
        return self._variables.get(root) or written[root]

    def _write_operation(self, number: int, operands: list[str]) -> str:
        operation, _, constants = self._nodes[number]
        if operation == LEAF:
            return f"c[{constants[0]}]"
        if operation == CONSTANT:
            return self._constant(constants[0])
        names = [self._constant(constant) for constant in constants]
        if operation in METHODS:
            return f"{operands[0]}.{operation}({', '.join(names)})"
        pattern, _ = OPERATIONS[operation]
        placed = {f"k{index}": name for index, name in enumerate(names)}
        return pattern.format(*operands, operands=", ".join(operands), **placed)

    def _constant(self, value: Any) -> str:
        self._constants.append(value)
        return f"k[{len(self._constants) - 1}]"


@lru_cache(maxsize=256)
def _compile_source(source: str) -> CodeType:
    """Compile a source. Plans that differ in constants only have the same one."""
    return compile(source, "<plan of a chat template>", "exec")


MIN_MESSAGES_TO_STRETCH = NUM_HEAD + 4
"""A chat of this length has both pieces that are repeated."""
_MIN_MESSAGES = NUM_HEAD + 2
_NUM_TAIL = 2
"""The pieces around the last message."""


class ExampleOutline(NamedTuple):
    """An example without its contents: the texts around them, and the places in these."""

    texts: list[bytes]
    """The pieces of text around the contents."""
    stripped: list[bool]
    """For each content whether it is written without space around it."""
    changes: list[tuple[int, int, int]]
    """Where the code of bytes changes: a piece, bytes from its start, and the new code."""
    last_answer: tuple[int, int]
    """Where the last answer begins."""
    counts: list[tuple[str, int]]
    refused_starts: list[tuple[int, str]]
    """Messages, and what their text must not begin with."""
    guards: list[GuardFunction | None]
    """For each content what it is asked; empty if the questions are known only for all together."""

    def are_guards_met(self, contents: Sequence[str]) -> list[str] | None:
        """Tell whether contents give the answers of the guards: an empty list or None."""
        for ask, content in zip(self.guards, contents, strict=True):
            if ask is not None and ask((content,)) is None:
                return None
        return []


def stretch(example: ExampleOutline, roles: Sequence[str], new_roles: Sequence[str]) -> ExampleOutline | None:
    """Make the outline of an example with other roles of that of a long one; None if it does not follow from it."""
    length, new_length = len(roles), len(new_roles)
    if length < MIN_MESSAGES_TO_STRETCH or new_length < _MIN_MESSAGES:
        return None
    messages = [_find_source(index, NUM_HEAD - 1, new_length - 1, length) for index in range(new_length)]
    pieces = [_find_source(index, NUM_HEAD, new_length - 1, length) for index in range(new_length + 1)]
    last_piece, last_offset = example.last_answer
    from_end = len(example.texts) - last_piece
    # Other counts depend on the number of answers.
    is_counted_once = all(name.startswith("found_by_") and count == 1 for name, count in example.counts)
    if [roles[message] for message in messages] != list(new_roles) or from_end > _NUM_TAIL or not is_counted_once:
        return None
    of_piece: dict[int, list[tuple[int, int]]] = {}
    for piece, offset, code in example.changes:
        of_piece.setdefault(piece, []).append((offset, code))
    changes = [(index, *change) for index, piece in enumerate(pieces) for change in of_piece.get(piece, ())]
    starts = dict(example.refused_starts)
    return ExampleOutline(
        [example.texts[piece] for piece in pieces],
        [example.stripped[message] for message in messages],
        changes,
        (len(pieces) - from_end, last_offset),
        example.counts,
        [(index, starts[message]) for index, message in enumerate(messages) if message in starts],
        [example.guards[message] for message in messages],
    )


def _find_source(index: int, last_of_head: int, first_of_tail: int, length: int) -> int:
    """Find the message or piece of a chat of some length that another one is like.

    >>> [_find_source(index, 3, 10, 8) for index in range(11)]
    [0, 1, 2, 3, 4, 5, 4, 5, 4, 5, 7]
    """
    if index <= last_of_head:
        return index
    if index >= first_of_tail:
        return index - first_of_tail + length - 1
    return last_of_head + 1 + (index - last_of_head - 1) % 2


_NAMING_KEYS = frozenset(("role", "type"))
_MAX_NAME_CHARS = 64
_SCALARS = frozenset((bool, int, float, type(None)))
_TEXT = "text"


class NoOutline(Exception):
    """A value of another type than those of JSON."""


def take_apart(value: Any, texts: list[str], key: object = None) -> Hashable:
    """Return the outline of a value, and add its texts to `texts`."""
    kind = type(value)
    if kind is str:
        if key in _NAMING_KEYS and len(value) <= _MAX_NAME_CHARS:
            return ("name", value)
        texts.append(value)
        return _TEXT
    if kind is dict:
        return ("dict", tuple([(name, take_apart(inner, texts, name)) for name, inner in value.items()]))
    if kind is list:
        return ("list", tuple([take_apart(inner, texts) for inner in value]))
    if kind in _SCALARS:
        return (kind.__name__, repr(value))
    raise NoOutline(kind.__name__)


def take_message_apart(message: Mapping[str, Any], texts: list[str]) -> Hashable:
    """Like `take_apart`, with a short way for most messages: their outline is the role."""
    if len(message) == 2 and type(message) is dict:
        (first, role), (second, content) = message.items()
        if first == "role" and second == "content" and type(role) is str and type(content) is str:
            texts.append(content)
            return role
    return take_apart(message, texts)


def outline_variables(variables: Mapping[str, Any]) -> Hashable:
    """Return the outline of variables: they are constants."""
    if not variables:
        return ()
    if any(type(value) not in _SCALARS and type(value) is not str for value in variables.values()):
        raise NoOutline("variables")
    return tuple([(name, type(value).__name__, repr(value)) for name, value in variables.items()])


class OpaqueChat:
    """A conversation with opaque texts instead of its texts, numbered in the order of `take_apart`."""

    def __init__(self, recording: Recording, make_dict: type[dict[str, Any]]) -> None:
        self._recording = recording
        self._make_dict = make_dict
        self._num_texts = 0

    def make_opaque(self, value: Any, key: object = None) -> Any:
        """Return a value with opaque texts."""
        kind = type(value)
        if kind is str:
            if key in _NAMING_KEYS and len(value) <= _MAX_NAME_CHARS:
                return value
            self._num_texts += 1
            return OpaqueText(self._recording, self._recording.add(LEAF, (), (self._num_texts - 1,)))
        if kind is dict:
            return self._make_dict({name: self.make_opaque(inner, name) for name, inner in value.items()})
        if kind is list:
            return [self.make_opaque(inner) for inner in value]
        return value
