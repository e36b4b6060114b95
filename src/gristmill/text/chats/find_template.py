"""Finding a chat template: the tokenizer's own, a file, or a built-in one; and the tokens that it may use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.names import find_nearest
from gristmill.text.tokenizers.files import ADDED_TOKENS, CONFIG, SPECIAL_TOKENS, TokenizerFiles

if TYPE_CHECKING:
    from collections.abc import Collection

BUILT_IN = {
    "chatml": (
        "{%- macro words(content) %}{{ content if content is string else (content or []) | map(attribute='text')"
        " | join }}{% endmacro %}"
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
        "{% if message['role'] == 'assistant' %}{% generation %}{{ words(message['content']) + '<|im_end|>' }}"
        "{% endgeneration %}{% else %}{{ words(message['content']) + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
}
DEFAULT = "default"
TOOL_USE = "tool_use"
"""The template for conversations with tools, where a tokenizer has one of its own for them."""
_JINJA = "chat_template.jinja"
_SPECIALS = "special_tokens_map.json"
_JSON = "chat_template.json"


class FoundTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a template, by its use, and the variables that it gets besides the conversation."""

    name: str
    sources: dict[str, str]
    variables: dict[str, str]

    @property
    def is_built_in(self) -> bool:
        """Whether it is part of Gristmill, and needs no limits on time and memory."""
        return self.sources == {DEFAULT: BUILT_IN.get(self.name)}

    def source(self, *, with_tools: bool) -> str:
        """Return the source for conversations with or without tools."""
        return self.sources.get(TOOL_USE if with_tools else DEFAULT, self.sources[DEFAULT])


def find_template(template: str | None, files: TokenizerFiles | None, folder: str = ".") -> FoundTemplate:
    """Find the template of a name; without a name, the tokenizer's own.

    `files` is the tokenizer, whose tokens the template may use (`bos_token`); None if there is none.
    """
    config = _read_config(files)
    if files is not None and _SPECIALS in files.files:  # older tokenizers have it beside the config, or instead
        config = _read_json_object(files.location(_SPECIALS)) | config
    variables = {
        name: token for name in config if name.endswith("_token") and (token := _read_token_text(config[name]))
    }
    if template is None:
        if files is None:
            raise UsageError(
                "render: no template is named",
                help="name a tokenizer that has one (tokenizer: …), a file (template: chat.jinja), or template: chatml",
            )
        return FoundTemplate(name=files.path, sources=_read_own_templates(files, config), variables=variables)
    if template in BUILT_IN:
        return FoundTemplate(name=template, sources={DEFAULT: BUILT_IN[template]}, variables=variables)
    path = Path(folder, Path(template).expanduser())
    if not path.is_file():
        nearest = find_nearest(template, BUILT_IN)
        raise UsageError(
            f"template: there is no file {path}",
            help=f'did you mean "{nearest}"?' if nearest else f"built in: {', '.join(BUILT_IN)}",
        )
    return FoundTemplate(name=template, sources={DEFAULT: _read_template_file(path)}, variables=variables)


def find_unknown_tokens(files: TokenizerFiles, added_tokens: Collection[str]) -> tuple[str, ...]:
    """Find tokens that only files beside `tokenizer.json` have: they would be encoded letter by letter."""
    config = _read_config(files)
    named: list[object] = []
    for described in (config, _find_beside(files, SPECIAL_TOKENS)):
        for key in ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"):
            value = described.get(key)
            named += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        named += [value for key, value in described.items() if key.endswith("_token")]
    named += _find_beside(files, ADDED_TOKENS)
    tokens = dict.fromkeys(token for value in named if (token := _read_token_text(value)))
    return tuple(token for token in tokens if token not in added_tokens)


def _find_beside(files: TokenizerFiles, name: str) -> dict[str, Any]:
    return _read_json_object(files.location(name)) if name in files.files else {}


def _read_own_templates(files: TokenizerFiles, config: dict[str, Any]) -> dict[str, str]:
    if _JINJA in files.files:
        return {DEFAULT: _read_template_file(files.location(_JINJA))}
    own = config.get("chat_template")
    if own is None and _JSON in files.files:
        own = _read_json_object(files.location(_JSON)).get("chat_template")
    if isinstance(own, str):
        return {DEFAULT: own}
    if isinstance(own, list):  # several, by name
        named = {entry["name"]: entry["template"] for entry in own if isinstance(entry, dict)}
        if DEFAULT in named:
            return {use: named[use] for use in (DEFAULT, TOOL_USE) if use in named}
    raise UsageError(
        f"{Path(files.path).parent} has no chat template",
        help="name one: template: chatml, or a file: template: chat.jinja",
    )


def _read_config(files: TokenizerFiles | None) -> dict[str, Any]:
    return _find_beside(files, CONFIG) if files is not None else {}


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        decoded: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a JSON object: {error}", help="fix it, or download it again") from error
    return decoded


def _read_template_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"template: {path} is not text: {error}", help="name a Jinja template") from error


def _read_token_text(value: object) -> str | None:
    if isinstance(value, dict):  # written by older versions of transformers
        value = value.get("content")
    return value if isinstance(value, str) else None
