r"""From the texts of a plain chat straight to the bytes of its example, and the places in them.

A record of nothing but roles and contents needs no conversation, no rendering and no search for answers if three things
are known for its roles: the plan of the template, the skeleton with the places of answers in it, and what the checks
of a record say. All three come from one real record, made into an example in the usual way:

    roles     user, assistant
    pieces    <|user|> … <|assistant|> … <|end|>\n         as bytes, with gaps for the contents
    places    the end of piece 1, and piece 2 + 7         where the answer begins and where its turn ends
    counts    found_by_sentinels: 1                       the same for every such record

Contents that could change this (blank ones, answers that begin like reasoning or with what a prompt holds) take the
usual way. About 2 µs for a short chat, and 0.3 µs for each further message. Places are computed for all records of a
batch at once (`steps/render/example_rows.py`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.options import SPLIT_ALWAYS
from gristmill.text.chats.parts import list_changes
from gristmill.text.chats.shapes import ASSISTANT, ROLES, NotAChat
from gristmill.text.chats.tracing.plans import MIN_MESSAGES_TO_STRETCH, ExampleOutline, stretch
from gristmill.text.chats.tracing.template_tracer import (
    MAX_MESSAGES,
    MAX_PLANS_PER_OUTLINE,
    MIN_OCCURRENCES,
    NUM_COMPARED,
    raise_difference,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.chats.example_maker import ExampleMaker
    from gristmill.text.chats.options import Example, RenderedRecord
    from gristmill.text.chats.skeletons import Skeleton
    from gristmill.text.chats.tracing.plans import GuardFunction, TextPlan

_MAY_REASON = re.compile(r"\s*[<\[][\w:]{1,40}[>\]]").match
"""A tag that answers with reasoning begin with (`find_reasoning`)."""
_SPACES_AND_BRACKETS = frozenset((*"<[", *filter(str.isspace, map(chr, range(0x3001)))))
_MAX_ROLES = 4096
_MAX_FAILURES = 3


class RecordPlan:
    """A plan for records: the bytes and places of those with some roles that meet its guards."""

    def __init__(self, example: ExampleOutline, are_guards_met: GuardFunction | None) -> None:
        self.example = example
        self._are_guards_met = are_guards_met
        self._pieces: list[Any] = [b""] * (2 * len(example.texts) - 1)
        self._pieces[::2] = example.texts
        self._strips = any(example.stripped)
        self._stripped = example.stripped
        self._refused_starts = example.refused_starts
        places = [*example.changes, (*example.last_answer, 0)]
        self.pieces_of_places = [2 * piece for piece, _, _ in places]
        """For each place where the code of bytes changes, and then for the start of the last answer, the index of the
        piece from whose start it is counted."""
        self.offsets_of_places = [offset for _, offset, _ in places]
        self.codes = [code for _, _, code in example.changes]
        self.counts = example.counts
        self.num_compared = 0

    def fill(self, contents: list[str]) -> list[bytes] | None:
        """Return the example of a record in pieces; None if the record does not meet the guards."""
        if self._are_guards_met is not None and self._are_guards_met(contents) is None:
            return None
        if self._strips:
            contents = [
                text.strip() if is_stripped else text
                for text, is_stripped in zip(contents, self._stripped, strict=True)
            ]
        for message, character in self._refused_starts:
            if contents[message][0] == character:
                return None
        pieces = self._pieces.copy()
        try:
            pieces[1::2] = map(str.encode, contents)
        except UnicodeEncodeError:  # a lone surrogate: reported in the usual way
            return None
        return pieces

    def find_places(self, pieces: Sequence[bytes]) -> tuple[list[int], int]:
        """Find where the code of an example's bytes changes, and to which; and where the last answer begins."""
        starts = list(accumulate(map(len, pieces), initial=0))
        places = zip(self.pieces_of_places, self.offsets_of_places, strict=True)
        *changes, last_answer = [starts[piece] + offset for piece, offset in places]
        return list(chain.from_iterable(zip(changes, self.codes, strict=True))), last_answer


class RecordPlans:
    """The plans of one maker of examples, by roles."""

    def __init__(self, maker: ExampleMaker) -> None:
        self._maker = maker
        self._by_roles: dict[tuple[str, ...], _KnownRoles] = {}
        self._num_of_form: dict[tuple[str, ...], int] = {}
        self._long_chats: dict[tuple[str, ...], _LongChat] = {}
        """By the form of their roles."""
        options = maker.options
        self._is_limited = options.max_tokens is not None
        # These make more than one example of a record, or other texts than the template's.
        self._is_off = maker.literals.occur_in((*ROLES, "role", "content"))
        self._is_off |= (
            options.append_eos or options.split_turns == SPLIT_ALWAYS or maker.usual_finder.template.tracer is None
        )

    def fill(self, roles: tuple[str, ...], contents: list[str]) -> tuple[RecordPlan, list[bytes]] | None:
        """Make the example of a chat that has only roles and contents, in pieces; None if it takes the usual way."""
        known = self._by_roles.get(roles)
        if known is None:
            known = self._add_roles(roles)
        if known is None:
            return None
        for text in contents:  # a fifth of the time of `all` and `any` for two texts
            if not text or text.isspace():
                return None
        for message in known.answers:
            text = contents[message]
            if text[0] in _SPACES_AND_BRACKETS and _MAY_REASON(text):
                return None
        if self._maker.literals.occur_in(contents):
            return None
        for index, plan in enumerate(known.plans):
            pieces = plan.fill(contents)
            if pieces is not None:
                if index:
                    known.plans.insert(0, known.plans.pop(index))
                return (plan, pieces) if not self._is_limited or self._fits(pieces) else None
        new_plan = self._make_plan(known, roles, contents)
        pieces = new_plan.fill(contents) if new_plan is not None else None
        if new_plan is None or pieces is None or not self._fits(pieces):
            return None
        return new_plan, pieces

    def _fits(self, pieces: list[bytes]) -> bool:
        max_tokens, count_tokens = self._maker.options.max_tokens, self._maker.count_tokens
        if max_tokens is None or count_tokens is None or sum(map(len, pieces)) < max_tokens:
            return True
        return count_tokens(b"".join(pieces).decode()) <= max_tokens

    def _add_roles(self, roles: tuple[str, ...]) -> _KnownRoles | None:
        """Begin to make plans for these roles, once they or similar ones have occurred often enough."""
        if self._is_off or len(roles) > MAX_MESSAGES or len(self._num_of_form) >= _MAX_ROLES:
            return None
        if not set(roles) <= set(ROLES):  # renamed or refused when the record is parsed
            return None
        form = _find_form(roles)
        num_seen = self._num_of_form[form] = self._num_of_form.get(form, 0) + 1
        if num_seen < MIN_OCCURRENCES:
            return None
        known = self._by_roles[roles] = _KnownRoles(roles)
        return known

    def _make_plan(self, known: _KnownRoles, roles: tuple[str, ...], contents: list[str]) -> RecordPlan | None:
        if known.num_failures >= _MAX_FAILURES or len(known.plans) >= MAX_PLANS_PER_OUTLINE:
            return None
        messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
        plan = self._stretch_plan(roles, messages) if not known.plans else None
        if plan is None:
            plan = self._trace(roles, messages)
        if plan is None:
            known.num_failures += 1
            return None
        known.plans.insert(0, plan)
        return plan

    def _trace(self, roles: tuple[str, ...], messages: list[dict[str, str]]) -> RecordPlan | None:
        """Make a plan by tracing a record, for its roles; for all lengths of such chats, too, if that is possible."""
        finder = self._maker.usual_finder
        tracer = finder.template.tracer
        if tracer is None:
            return None
        blind_plan = tracer.make_blind_plan(messages) if len(roles) >= MIN_MESSAGES_TO_STRETCH else None
        plan = blind_plan or tracer.make_plan(messages)
        if plan is None:
            return None
        contents = [message["content"] for message in messages]
        with suppress(NotAChat):  # before anything else is looked for: what is found is for chats
            rendered = self._maker.make({"messages": messages}, may_hold_literals=False)
            skeleton = finder.find_skeleton(roles)
            if skeleton is None:
                return None
            record_plan = _join_facts(plan, skeleton, rendered, contents)
            guards = blind_plan.split_guards(len(roles)) if blind_plan is not None else None
            if record_plan is not None and guards is not None:
                self._add_long_chat(roles, record_plan.example._replace(guards=guards))
            return record_plan
        return None

    def _add_long_chat(self, roles: tuple[str, ...], example: ExampleOutline) -> None:
        """Keep a chat for others that are longer or shorter; unless its own middle is not as regular."""
        if stretch(example, roles, roles) == example:
            self._long_chats[_find_form(roles)] = _LongChat(roles, example)

    def _stretch_plan(self, roles: tuple[str, ...], messages: list[dict[str, str]]) -> RecordPlan | None:
        """Make a plan of that for a chat of another length.

        Raises:
            ParityError: Jinja writes another text.
        """
        long_chat = self._long_chats.get(_find_form(roles))
        example = stretch(long_chat.example, long_chat.roles, roles) if long_chat is not None else None
        template = self._maker.usual_finder.template
        if long_chat is None or example is None or template.tracer is None:
            return None
        plan = RecordPlan(example, example.are_guards_met if any(example.guards) else None)
        pieces = plan.fill([message["content"] for message in messages])
        if pieces is None or not template.tracer.count_plan(sum(map(len, example.texts))):
            return None
        with template.without_tracing():
            expected = template.render(messages)
        text = b"".join(pieces).decode()
        if text != expected:
            raise_difference(messages, expected, text)
        # The text of one record of each length is compared here, whole examples of the first few lengths elsewhere.
        long_chat.num_lengths += 1
        plan.num_compared = NUM_COMPARED - 1 if long_chat.num_lengths <= NUM_COMPARED else NUM_COMPARED
        return plan


class _KnownRoles:
    """The plans of some roles."""

    __slots__ = ("answers", "num_failures", "plans")

    def __init__(self, roles: tuple[str, ...]) -> None:
        self.answers = [index for index, role in enumerate(roles) if role == ASSISTANT]
        self.plans: list[RecordPlan] = []
        self.num_failures = 0


class _LongChat:
    """A chat that was traced without its length, and the number of other lengths that were made of it."""

    __slots__ = ("example", "num_lengths", "roles")

    def __init__(self, roles: tuple[str, ...], example: ExampleOutline) -> None:
        self.roles = roles
        self.example = example
        self.num_lengths = 0


def _find_form(roles: tuple[str, ...]) -> tuple[str, ...]:
    """Find what roles have in common with longer and shorter chats: a head, and two roles that take turns.

    >>> _find_form(("system", "user", "assistant", "user", "assistant"))
    ('system', 'user', 'assistant')
    """
    pair = roles[-2:]
    rest = roles
    while len(rest) > 2 and rest[-2:] == pair:
        rest = rest[:-2]
    return roles if len(rest) > 2 else (*rest, *pair) if rest != pair else pair


def _join_facts(
    plan: TextPlan, skeleton: Skeleton, rendered: RenderedRecord, contents: Sequence[str]
) -> RecordPlan | None:
    """Make a plan for records of what is known; None if the facts do not fit together."""
    if len(rendered.examples) != 1 or rendered.dropped:
        return None
    [example] = rendered.examples
    texts, stripped = _split_pieces(plan)
    # Behind a stripped text there must be more than space: else it is not clear where the text ends.
    if texts != skeleton.pieces or any(not texts[index + 1].strip() for index, strips in enumerate(stripped) if strips):
        return None
    starts = skeleton.find_starts(example.text, contents)
    refused_starts = _find_refused_starts(skeleton, texts)
    if starts is None or refused_starts is None:
        return None
    places = _locate_places(example, skeleton, starts)
    if places is None:
        return None
    codes = [code for _, code in list_changes(example)]
    *changes, last_answer = [(piece, len(texts[piece][:offset].encode())) for piece, offset in places]
    coded = [(*place, code) for place, code in zip(changes, codes, strict=True)]
    encoded = [text.encode() for text in texts]
    outline = ExampleOutline(encoded, stripped, coded, last_answer, rendered.counts, refused_starts, [])
    return RecordPlan(outline, plan.are_guards_met)


def _split_pieces(plan: TextPlan) -> tuple[list[str], list[bool]]:
    """Split the output of a plan into what is around the contents, and whether each of these is stripped."""
    texts, stripped = [""], list[bool]()
    for piece in plan.list_pieces():
        if isinstance(piece, str):
            texts[-1] += piece
        elif piece[0] == len(stripped):
            stripped.append(piece[1])
            texts.append("")
        else:
            return [], []
    return texts, stripped


def _locate_places(example: Example, skeleton: Skeleton, starts: Sequence[int]) -> list[tuple[int, int]] | None:
    """Find the piece in which each change of an example is, and the start of its last answer; None if one is in none.

    Contents are not empty, so no place is in two pieces.
    """
    places: list[tuple[int, int]] = []
    changes = list_changes(example)
    for position in (*(position for position, _ in changes), example.last_answer):
        piece = bisect_right(starts, position) - 1
        offset = position - starts[piece]
        if offset > len(skeleton.pieces[piece]):
            return None
        places.append((piece, offset))
    return places


def _find_refused_starts(skeleton: Skeleton, texts: Sequence[str]) -> list[tuple[int, str]] | None:
    """Find what texts must not begin with, because a prompt holds it (`Answer.skip_written_prompt`)."""
    refused: list[tuple[int, str]] = []
    for answer in skeleton.answers or ():
        piece, offset = answer.header_end or answer.start
        rest = texts[piece][offset:]
        if answer.missing and rest.startswith(answer.missing):
            return None
        if answer.missing and answer.missing.startswith(rest):
            refused.append((answer.message, answer.missing[len(rest)]))
    return refused
