"""Preferences in records, and one shape for all of them: a prompt, and the answers to it that were judged.

| keys of a record | |
|---|---|
| `prompt`, `chosen`, `rejected` | texts or messages; the prompt may be in both sides, as in UltraFeedback |
| `chosen`, `rejected` | messages, or dialogues in one text (HH-RLHF): what both begin with is the prompt |
| `messages_chosen`, `messages_rejected` | the same |
| `messages`, `rejected_response` or `rejected_messages` | the last answer of the messages is the chosen one |
| a chat's prompt (`conversations`, or `instruction` and `input`), `chosen`, `rejected` | LLaMA-Factory |
| `prompt`, `responses`, `scores` or `ranks` | the best answer against the worst |
| a chat, and `label` or `kto_tag` | KTO: its last answer is good or bad |

Nothing is guessed: sides that begin with different prompts, or a score that is no number, are reported. A pair that
says nothing, because its sides are equal or one is empty, is dropped with a reason.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from gristmill.text.chats.options import DroppedChat
from gristmill.text.chats.shapes import (
    ASSISTANT,
    BAD_ANSWER_KEYS,
    GOOD_LABELS,
    KEYS_WITH_MEANING,
    SYSTEM,
    USER,
    NotAChat,
    are_messages,
    join_texts,
    list_shapes,
    read_messages,
    read_raw_messages,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PreferenceForm = Literal["pairs", "labels"]
PAIRS, LABELS = get_args(PreferenceForm)

CHOSEN, REJECTED = "chosen", "rejected"
PREFERENCE_PARTS = {
    "prompt": "prompt",
    "chosen": CHOSEN,
    "rejected": REJECTED,
    "response": "completion",
    "label": "label",
    "responses": "responses",
    "scores": "scores",
    "system": "system",
    "tools": "tools",
}
"""What `fields` can name of a preference, and under which key it is read."""
_SIDES = ((CHOSEN, REJECTED), ("messages_chosen", "messages_rejected"), ("chosen_messages", "rejected_messages"))
_REJECTED_KEYS = ("rejected_response", "rejected_messages")
_SEVERAL = ("responses", "answers", "completions", "candidates")
_SCORES, _RANKS = ("scores", "rewards", "ratings"), ("ranks", "rankings", "ranking")
_SCORE_OF_ANSWER = ("score", "overall_score", "reward", "rating")
_TEXT_OF_ANSWER = ("response", "text", "answer", "completion")
_SCORES_OF_SIDES = ("score_{}", "{}_score", "{}_rating", "{}_reward", "reward_{}")
PREFERENCE_KEYS = frozenset(
    (
        *(name for names in _SIDES for name in names),
        *(*_REJECTED_KEYS, *_SEVERAL, *_SCORES, *_RANKS, *BAD_ANSWER_KEYS, "margin", "score"),
        *(pattern.format(side) for pattern in _SCORES_OF_SIDES for side in (CHOSEN, REJECTED)),
    )
)
"""Keys of records that say something about preferences."""
_BAD_LABELS = frozenset(("false", "0", "0.0", "-1", "no", "bad", "undesirable"))
_SPEAKERS = {"Human": USER, "Assistant": ASSISTANT, "System": SYSTEM}
_turn_of_dialogue = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant|System):")
_begins_dialogue = re.compile(r"\s*(?:Human|System):").match


@dataclass(frozen=True, slots=True)
class Preference:
    """A prompt and the answers to it: the chosen and the rejected one, or one that is good or bad."""

    prompt: list[Any]
    """Messages as they were read."""
    answers: list[list[Any]]
    """The messages of each answer, after the prompt."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """`margin`, `score_chosen` and `score_rejected`; or `label` and `score`."""


def is_preference(record: Mapping[str, Any]) -> str:
    """Return the form of the preference that a record looks like; empty if it is none.

    >>> is_preference({"prompt": "2 + 2?", "chosen": "4", "rejected": "5"})
    'pairs'
    """
    if _find_sides(record) is not None or _find_several(record) is not None:
        return "pairs"
    return "labels" if _find_label(record) is not None and list_shapes(record) else ""


def read_preferences(record: Mapping[str, Any], form: str, fields: Mapping[str, str] | None = None) -> list[Preference]:
    """Read the preferences of a record: one pair, or the answers that are labeled good or bad.

    A pair of a record becomes two labeled answers where these are asked for.

    Raises:
        NotAChat: The record is no preference, or contradicts itself.
        DroppedChat: It is one that says nothing.
    """
    record = _rename_fields(record, fields) if fields else record
    sides, several = _find_sides(record), _find_several(record)
    if sides is None and several is None:
        if form == PAIRS:
            raise NotAChat("not_a_pair", f"no chosen and rejected answer: {', '.join(map(str, list(record)[:8]))}")
        return [_read_labeled(record)]
    pair = _read_several(record, *several) if sides is None and several is not None else _read_pair(record, sides)
    _refuse_empty_sides(pair)
    if form == PAIRS:
        return [pair]
    scores = (pair.values[f"score_{side}"] for side in (CHOSEN, REJECTED))
    return [
        Preference(pair.prompt, [answer], {"label": label, "score": score})
        for answer, label, score in zip(pair.answers, (True, False), scores, strict=True)
    ]


def make_chat(record: Mapping[str, Any], preference: Preference, answer: int) -> dict[str, Any]:
    """Make a chat of a preference's prompt and one of its answers, with all else that the record says of chats."""
    names = KEYS_WITH_MEANING.difference(BAD_ANSWER_KEYS, ("conversations", "conversation"))
    others = {name: record[name] for name in names if name in record}
    return {**others, "messages": [*preference.prompt, *preference.answers[answer]]}


def _rename_fields(record: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    for part, name in fields.items():
        if name not in record and part not in ("system", "tools"):
            keys = ", ".join(map(str, list(record)[:8]))
            raise NotAChat("missing_field", f"there is no {name!r}, which `fields` names; keys: {keys}")
    return {**record, **{PREFERENCE_PARTS[part]: record[name] for part, name in fields.items() if name in record}}


def _find_sides(record: Mapping[str, Any]) -> tuple[Any, Any] | None:
    for names in _SIDES:
        sides = tuple(record.get(name) for name in names)
        if all(side is not None for side in sides):
            return sides[0], sides[1]
    rejected = next((record[name] for name in _REJECTED_KEYS if record.get(name) is not None), None)
    messages = record.get("messages")
    if rejected is None or messages is None:
        return None
    whole = read_messages(messages, "messages")
    if isinstance(rejected, str):
        if not whole or whole[-1].get("role") != ASSISTANT:
            raise NotAChat("not_a_pair", "the messages next to the rejected answer do not end with a chosen one")
        return whole, [*whole[:-1], {"role": ASSISTANT, "content": rejected}]
    return whole, rejected


def _find_several(record: Mapping[str, Any]) -> tuple[list[Any], Any, bool] | None:
    """Find several answers, what they were judged by, and whether low numbers are good."""
    answers = next((record[name] for name in _SEVERAL if isinstance(record.get(name), list)), None)
    if not answers:
        return None
    for names, are_ranks in ((_SCORES, False), (_RANKS, True)):
        for name in names:
            if record.get(name) is not None:
                return answers, record[name], are_ranks
    if not all(isinstance(answer, dict) for answer in answers):
        return None
    for name in (*_SCORE_OF_ANSWER, "rank"):
        if all(name in answer for answer in answers):
            return answers, [answer[name] for answer in answers], name == "rank"
    return None


def _find_label(record: Mapping[str, Any]) -> Any:
    return next((record[key] for key in BAD_ANSWER_KEYS if record.get(key) is not None), None)


def _read_pair(record: Mapping[str, Any], sides: tuple[Any, Any] | None) -> Preference:
    assert sides is not None
    chosen, rejected = map(_read_side, sides)
    prompt = _read_prompt(record)
    values = _read_values(record)
    are_answers = [not side or side[0].get("role") == ASSISTANT for side in (chosen, rejected)]
    if all(are_answers):
        if not prompt:
            raise NotAChat("no_prompt", "the sides are answers, and there is no prompt for them")
        return Preference(prompt, [chosen, rejected], values)
    if any(are_answers):
        raise NotAChat("prompts_differ", "one side is an answer, the other a whole conversation")
    if chosen == rejected:
        raise DroppedChat("equal_sides")
    shared = 0
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    for name, side in ((CHOSEN, chosen), (REJECTED, rejected)):
        if len(side) <= max(shared, len(prompt) if are_messages(record.get("prompt")) else 0):
            raise NotAChat("shorter_than_prompt", f"{name} has no answer after the prompt of {shared} messages")
        if side[shared].get("role") != ASSISTANT:
            raise NotAChat("prompts_differ", f"the sides begin to differ before an answer, at message {shared}")
    _check_prompt(record, prompt, chosen[:shared])
    return Preference(chosen[:shared], [chosen[shared:], rejected[shared:]], values)


def _check_prompt(record: Mapping[str, Any], prompt: Sequence[Any], shared: Sequence[Any]) -> None:
    """Refuse a prompt that is not what both sides begin with."""
    if not isinstance(record.get("prompt"), (str, list)) or not prompt:
        return
    texts = [join_texts(message.get("content")) for message in shared]
    if any(not any(join_texts(message.get("content")) in text for text in texts) for message in prompt):
        raise NotAChat("prompts_differ", "the prompt is not what both sides begin with")


def _read_several(record: Mapping[str, Any], answers: list[Any], judged: Any, are_ranks: bool) -> Preference:  # noqa: FBT001
    """Choose the best answer and the worst one; of equal ones the first."""
    if not isinstance(judged, list) or len(judged) != len(answers):
        raise NotAChat("invalid_score", f"there are {len(answers)} answers, but the scores are {judged!r:.80}")
    numbers = [_read_number(number, "a score of an answer") for number in judged]
    known = [(number, place) for place, number in enumerate(numbers) if number is not None]
    if len(known) < 2:
        raise DroppedChat("one_answer")
    scores = [-number if are_ranks else number for number, _ in known]
    best, worst = known[scores.index(max(scores))], known[scores.index(min(scores))]
    if best[0] == worst[0]:
        raise DroppedChat("equal_scores")
    prompt = _read_prompt(record)
    if not prompt:
        raise NotAChat("no_prompt", "there are several answers, and no prompt for them")
    sides = [_read_answer(answers[place]) for _, place in (best, worst)]
    known_scores = (
        {} if are_ranks else {"score_chosen": best[0], "score_rejected": worst[0], "margin": best[0] - worst[0]}
    )
    return Preference(prompt, sides, {"margin": None, "score_chosen": None, "score_rejected": None} | known_scores)


def _read_labeled(record: Mapping[str, Any]) -> Preference:
    value = _find_label(record)
    if value is None:
        raise NotAChat("no_label", f"there is no label: {', '.join(map(str, list(record)[:8]))}")
    word = str(value).strip().lower()
    if word not in GOOD_LABELS and word not in _BAD_LABELS:
        raise NotAChat("invalid_label", f"a label must be true or false, not {value!r:.60}")
    shapes = list_shapes(record)
    if not shapes:
        raise NotAChat("not_a_chat", f"there is a label, but no chat: {', '.join(map(str, list(record)[:8]))}")
    messages = _check_messages(read_raw_messages(record, shapes[0]))
    # A completion of several turns is one answer; of other chats it is the last.
    start = len(messages) - 1
    if are_messages(record.get("completion")):
        start = len(messages) - len(read_messages(record["completion"], "completion"))
    values = {"label": word in GOOD_LABELS, "score": _read_number(record.get("score"), "score")}
    preference = Preference(messages[:start], [messages[start:]], values)
    if not any(map(_has_words, preference.answers[0])):
        raise DroppedChat("empty_completion")
    return preference


def _read_values(record: Mapping[str, Any]) -> dict[str, float | None]:
    chosen, rejected = (
        next((record[key] for pattern in _SCORES_OF_SIDES if record.get(key := pattern.format(side)) is not None), None)
        for side in (CHOSEN, REJECTED)
    )
    scores = _read_number(chosen, "the score of chosen"), _read_number(rejected, "the score of rejected")
    margin = _read_number(record.get("margin"), "margin")
    if margin is None and scores[0] is not None and scores[1] is not None:
        margin = scores[0] - scores[1]
    return {"margin": margin, "score_chosen": scores[0], "score_rejected": scores[1]}


def _read_number(value: Any, noun: str) -> float | None:
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise NotAChat("invalid_score", f"{noun} is no number: {value!r:.60}")
    return number


def _read_prompt(record: Mapping[str, Any]) -> list[Any]:
    """Read what the sides are answers to; empty if they must hold it themselves."""
    prompt = record.get("prompt")
    if isinstance(prompt, str) and not are_messages(prompt):
        if not _begins_dialogue(prompt):
            return [{"role": USER, "content": prompt}]
        messages = _read_dialogue(prompt)
        return messages[:-1] if not _has_words(messages[-1]) else messages
    if prompt is not None:
        return read_messages(prompt, "prompt")
    turns = record.get("conversations", record.get("conversation"))
    if turns is not None:
        return read_messages(turns, "conversations")
    question = record.get("instruction")
    if not isinstance(question, str):
        return []
    alpaca = {name: record[name] for name in ("instruction", "input", "history") if name in record}
    return read_raw_messages({**alpaca, "output": ""}, "alpaca")[:-1]


def _read_side(side: Any) -> list[Any]:
    """Read a side: an answer, or a whole conversation that ends with one."""
    if isinstance(side, str) and _begins_dialogue(side):
        return _read_dialogue(side)
    return _read_answer(side)


def _read_answer(answer: Any) -> list[Any]:
    if isinstance(answer, str) and not are_messages(answer):
        return [{"role": ASSISTANT, "content": answer}]
    if isinstance(answer, dict) and not answer.keys() & {"role", "from"}:
        text = next((answer[name] for name in _TEXT_OF_ANSWER if isinstance(answer.get(name), str)), None)
        if text is None:
            raise NotAChat("invalid_message", f"an answer has no text, only {', '.join(map(str, answer))}")
        return [{"role": ASSISTANT, "content": text}]
    return read_messages([answer] if isinstance(answer, dict) else answer, "an answer")


def _check_messages(messages: list[Any]) -> list[Any]:
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise NotAChat("invalid_message", f"message {index} is {type(message).__name__}, not an object")
    return messages


def _read_dialogue(text: str) -> list[Any]:
    r"""Read a dialogue in one text, as in HH-RLHF.

    >>> _read_dialogue("\n\nHuman: 2 + 2?\n\nAssistant: 4")
    [{'role': 'user', 'content': '2 + 2?'}, {'role': 'assistant', 'content': '4'}]
    """
    parts = _turn_of_dialogue.split(text)[1:]
    speakers, contents = parts[::2], parts[1::2]
    return [
        {"role": _SPEAKERS[speaker], "content": content.strip()}
        for speaker, content in zip(speakers, contents, strict=True)
    ]


def _refuse_empty_sides(pair: Preference) -> None:
    """Drop a pair whose sides say the same, or of which one says nothing."""
    for name, answer in zip((CHOSEN, REJECTED), pair.answers, strict=True):
        if not any(map(_has_words, answer)):
            raise DroppedChat(f"empty_{name}")
    chosen, rejected = pair.answers
    if chosen == rejected:
        raise DroppedChat("equal_sides")
    if _without_space(chosen) == _without_space(rejected):
        raise DroppedChat("sides_differ_in_space")


def _has_words(message: Mapping[str, Any]) -> bool:
    return bool(
        join_texts(message.get("content")) or message.get("tool_calls") or str(message.get("reasoning_content") or "")
    )


def _without_space(messages: Sequence[Any]) -> list[Any]:
    return [{**message, "content": join_texts(message.get("content")).split()} for message in messages]
