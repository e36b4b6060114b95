"""Chats: the shapes they come in, how a template writes them, and which of the text the assistant wrote."""

from gristmill.text.chats.check import TemplateProblem, TemplateReport, check_template
from gristmill.text.chats.examples import (
    CUT,
    DROP_CHAT,
    LAST_NOT_ASSISTANT,
    PROMPT,
    SPLIT_NEVER,
    SPLIT_TURNS,
    TOO_LONG,
    TRAIN_ON,
    ChatOptions,
    Example,
    ExampleMaker,
    Made,
)
from gristmill.text.chats.find_template import FoundTemplate, find_template, find_unknown_tokens
from gristmill.text.chats.shapes import AUTO, RESERVED_VARIABLES, SHAPES, Conversation, NotAChat, conversation_of

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
    "Made",
    "NotAChat",
    "TemplateProblem",
    "TemplateReport",
    "check_template",
    "conversation_of",
    "find_template",
    "find_unknown_tokens",
]
