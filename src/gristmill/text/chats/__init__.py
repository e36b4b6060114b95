"""Chats: the shapes of their records, how a template renders them, and which of the text the assistant wrote."""

from gristmill.text.chats.chat_options import (
    CUT,
    DROP_CHAT,
    LAST_NOT_ASSISTANT,
    PROMPT,
    SPLIT_NEVER,
    SPLIT_TURNS,
    TOO_LONG,
    TRAIN_ON,
    ChatOptions,
)
from gristmill.text.chats.check_template import TemplateProblem, TemplateReport, check_template
from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.find_template import FoundTemplate, find_template, find_unknown_tokens
from gristmill.text.chats.rendered_record import Example, RenderedRecord
from gristmill.text.chats.shapes import AUTO, RESERVED_VARIABLES, SHAPES, Conversation, NotAChat, parse_conversation

__all__ = [
    "AUTO",
    "CUT",
    "DROP_CHAT",
    "LAST_NOT_ASSISTANT",
    "PROMPT",
    "RESERVED_VARIABLES",
    "SHAPES",
    "SPLIT_NEVER",
    "SPLIT_TURNS",
    "TOO_LONG",
    "TRAIN_ON",
    "ChatOptions",
    "Conversation",
    "Example",
    "ExampleMaker",
    "FoundTemplate",
    "NotAChat",
    "RenderedRecord",
    "TemplateProblem",
    "TemplateReport",
    "check_template",
    "find_template",
    "find_unknown_tokens",
    "parse_conversation",
]
