"""Chats: the shapes of their records, how a template renders them, and which of the text the assistant wrote."""

from gristmill.text.chats.chat_options import (
    CUT,
    DROP_CHAT,
    SPLIT_NEVER,
    ChatOptions,
    LastNotAssistant,
    PromptPolicy,
    SplitTurns,
    TooLong,
    TrainOn,
)
from gristmill.text.chats.check_template import TemplateProblem, TemplateReport, check_template
from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.find_template import FoundTemplate, find_template, find_unknown_tokens
from gristmill.text.chats.record_plan import FilledRecord, RecordPlan, RecordPlans
from gristmill.text.chats.rendered_record import Example, RenderedRecord
from gristmill.text.chats.shapes import (
    MESSAGES,
    RESERVED_VARIABLES,
    ROLES,
    Conversation,
    NotAChat,
    Shape,
    parse_conversation,
)

__all__ = [
    "CUT",
    "DROP_CHAT",
    "MESSAGES",
    "RESERVED_VARIABLES",
    "ROLES",
    "SPLIT_NEVER",
    "ChatOptions",
    "Conversation",
    "Example",
    "ExampleMaker",
    "FilledRecord",
    "FoundTemplate",
    "LastNotAssistant",
    "NotAChat",
    "PromptPolicy",
    "RecordPlan",
    "RecordPlans",
    "RenderedRecord",
    "Shape",
    "SplitTurns",
    "TemplateProblem",
    "TemplateReport",
    "TooLong",
    "TrainOn",
    "check_template",
    "find_template",
    "find_unknown_tokens",
    "parse_conversation",
]
