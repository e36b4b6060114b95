"""`render` and `tokenize` of a source are linked, or the recipe is refused."""

import pytest

from gristmill.core.errors import UsageError
from gristmill.steps import Length, Normalize, Pack, Render, Tokenize, Write
from gristmill.steps.render.link_chats import link_chat_steps

RENDER, TOKENIZE = Render(template="chatml"), Tokenize(tokenizer="folder")


def test_render_gets_the_tokenizer_and_the_longest_row():
    render, tokenize, _ = link_chat_steps([RENDER, TOKENIZE, Pack(row_length=64)], 64)
    assert render.tokenizer == "folder"
    assert render.max_tokens == 64
    assert type(tokenize) is not Tokenize


def test_steps_without_chats_stay():
    steps = (Length(min_chars=1), TOKENIZE)
    assert link_chat_steps(steps, None) == steps


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([RENDER, RENDER], "only once"),
        ([TOKENIZE, RENDER], "it comes before render"),
        ([RENDER, Normalize(), TOKENIZE], "normalize cannot be between them"),
        ([Render(template="chatml", keep="messages"), TOKENIZE], "tokenize makes tokens"),
        ([Render(template="chatml", keep="messages"), Normalize(), Write()], "not normalize"),
    ],
)
def test_what_would_change_the_text_after_its_mask_is_refused(steps, words):
    with pytest.raises(UsageError, match=words):
        link_chat_steps(steps, None)
