"""The answers of a conversation in its rendered text, and why they may not be found."""

from __future__ import annotations

from dataclasses import dataclass, replace


class HistoryRewritten(Exception):
    """The template does not write earlier turns as it wrote them when they were the last."""


class MessageNotRendered(Exception):
    """The template leaves a message out."""


@dataclass(frozen=True, slots=True)
class Answer:
    r"""One message of the assistant in the rendered text; positions are in characters.

    In `<|user|>2+2?<|end|>\n<|assistant|>4<|end|>\n` the answer starts at `4`, its content ends behind `4`, and it ends
    behind the last `<|end|>`, which the model has to write as well.
    """

    message: int
    """Index of the message in the conversation."""
    start: int
    content_end: int
    """The end without the end of turn."""
    end: int
    missing: str = ""
    """What the prompt has before the answer and the rendering has not."""
    has_other_history: bool = False
    """Whether the prompt writes earlier messages differently from the rendering."""
    header_end: int = -1
    """Where prompt and rendering part, if not at `start`: a template's tags may include the header. -1: at `start`."""

    @property
    def differs(self) -> bool:
        """Whether the rendering does not begin with the prompt."""
        return bool(self.missing) or self.has_other_history

    def skip_written_prompt(self, text: str) -> Answer:
        """Return the answer without `missing`, if the text has it here after all.

        What is missing is observed once and used for many answers; some of these begin with it themselves.
        """
        header_end = self.start if self.header_end < 0 else self.header_end
        if not self.missing or not text.startswith(self.missing, header_end):
            return self
        start = self.start + len(self.missing) if self.start == header_end else self.start
        return Answer(self.message, start, self.content_end, self.end, has_other_history=self.has_other_history)

    def overlaps(self, start: int, end: int) -> bool:
        """Tell whether a span has a part of the answer. An empty span, of an answer without words, is inside of it."""
        return start < self.end and (self.start < end or start == end == self.start)


def append_end_token(text: str, token: str, answers: list[Answer], last: Answer | None) -> tuple[str, list[Answer]]:
    """Append an end token to the answer that ends a text, if there is one; returns the answers with their end tokens.

    What the template writes behind that answer is left out.
    """
    if last is not None and not text.endswith(token, 0, last.end):
        text = text[: last.end] + token
    longer = [
        replace(answer, end=answer.end + len(token)) if text.startswith(token, answer.end) else answer
        for answer in answers
    ]
    return text, longer
