"""A plan: what a recording has found out, as a generated Python function of a record's texts.

    def fill(c):
        if (k[0] in c[1]): return None
        return [k[1], c[0], k[2], c[1].strip(), k[3]]

`c` are the texts of a record, `k` the constants: the source has no text of a template or of a record in it, only names
of operations from a fixed list, and numbers of constants. It runs without builtins. About 1 µs for a short chat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.tracing.recording import CONSTANT, LEAF, METHODS, OPERATIONS, quote_json

if TYPE_CHECKING:
    from collections.abc import Hashable
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
