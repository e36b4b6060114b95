"""Chats: the shapes of their records, how a template renders them, and which of the text the assistant wrote."""

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    from gristmill.text.chats.check_template import TemplateProblem, TemplateReport
    from gristmill.text.chats.example_maker import ExampleMaker
    from gristmill.text.chats.find_template import FoundTemplate, find_unknown_tokens
    from gristmill.text.chats.record_plan import RecordPlan, RecordPlans
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
    "find_unknown_tokens",
    "parse_conversation",
]

_HOMES = {
    "CUT": "gristmill.text.chats.chat_options",
    "DROP_CHAT": "gristmill.text.chats.chat_options",
    "MESSAGES": "gristmill.text.chats.shapes",
    "RESERVED_VARIABLES": "gristmill.text.chats.shapes",
    "ROLES": "gristmill.text.chats.shapes",
    "SPLIT_NEVER": "gristmill.text.chats.chat_options",
    "ChatOptions": "gristmill.text.chats.chat_options",
    "Conversation": "gristmill.text.chats.shapes",
    "Example": "gristmill.text.chats.rendered_record",
    "ExampleMaker": "gristmill.text.chats.example_maker",
    "FoundTemplate": "gristmill.text.chats.find_template",
    "LastNotAssistant": "gristmill.text.chats.chat_options",
    "NotAChat": "gristmill.text.chats.shapes",
    "PromptPolicy": "gristmill.text.chats.chat_options",
    "RecordPlan": "gristmill.text.chats.record_plan",
    "RecordPlans": "gristmill.text.chats.record_plan",
    "RenderedRecord": "gristmill.text.chats.rendered_record",
    "Shape": "gristmill.text.chats.shapes",
    "SplitTurns": "gristmill.text.chats.chat_options",
    "TemplateProblem": "gristmill.text.chats.check_template",
    "TemplateReport": "gristmill.text.chats.check_template",
    "TooLong": "gristmill.text.chats.chat_options",
    "TrainOn": "gristmill.text.chats.chat_options",
    "find_unknown_tokens": "gristmill.text.chats.find_template",
    "parse_conversation": "gristmill.text.chats.shapes",
}
"""Where each name is defined. It is imported at its first use: most processes need few of them."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gristmill.text.chats' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
