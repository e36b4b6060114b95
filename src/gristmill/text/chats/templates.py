"""Chat templates: found (the tokenizer's own, a file, or a built-in one) with the tokens that they may use, compiled by
Jinja, and rendered by it or by their tracer.

Jinja takes about 25 µs for a short conversation, a plan of the tracer 2 µs.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (of a constant)
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.checks import find_nearest
from gristmill.core.errors import GristmillError, UsageError
from gristmill.text.chats.jinja_environment import MARK_METHOD, make_environment
from gristmill.text.chats.tracing.template_tracer import TemplateTracer
from gristmill.text.tokenizers.files import ADDED_TOKENS, CONFIG, SPECIAL_TOKENS, TokenizerFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from datetime import date
    from types import CodeType


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
"""The template for conversations with tools, where a tokenizer has a separate one for them."""
_BARS = frozenset("|\uff5c")
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
    if files is not None and _SPECIALS in files.files:  # older tokenizers have it next to the config, or instead
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
    """Find tokens that only files next to `tokenizer.json` have: they would be encoded letter by letter."""
    tokens = [*_list_named_tokens(files), *_list_described_tokens(files), *_find_beside(files, ADDED_TOKENS)]
    return tuple(token for token in dict.fromkeys(tokens) if token not in added_tokens)


def find_control_tokens(
    template: FoundTemplate, files: TokenizerFiles, unmarked: Iterable[str], image_token: str | None
) -> tuple[str, ...]:
    """Choose the control tokens from those that look like one and are not marked as special.

    They are written by the template, named in the tokenizer's config, or have a bar (`<|fim_prefix|>`). All others are
    text that has a token, such as Gemma's `<table>`.
    """
    used = {*_list_named_tokens(files), *_list_described_tokens(files, special=True), image_token}
    return tuple(
        token
        for token in unmarked
        if token in used or _BARS.intersection(token) or any(token in source for source in template.sources.values())
    )


def _list_named_tokens(files: TokenizerFiles) -> Iterator[str]:
    """List the tokens to which the files next to `tokenizer.json` give a role."""
    for config in (_read_config(files), _find_beside(files, SPECIAL_TOKENS)):
        named = [value for key, value in config.items() if key.endswith("_token")]
        for key in ("additional_special_tokens", "extra_special_tokens"):
            value = config.get(key)
            named += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        yield from filter(None, map(_read_token_text, named))


def _list_described_tokens(files: TokenizerFiles, *, special: bool = False) -> Iterator[str]:
    """List the tokens that the config only describes; with `special`, those that it marks as such."""
    described = _read_config(files).get("added_tokens_decoder")
    for value in described.values() if isinstance(described, dict) else ():
        token = _read_token_text(value)
        if token and (not special or (isinstance(value, dict) and value.get("special"))):
            yield token


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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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


Message = dict[str, Any]
"""A message in OpenAI's form: `role`, `content`, and anything else that the template uses."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class TemplateError(GristmillError, ValueError):
    """A template refused a conversation, or failed on it."""


class ChatTemplate:
    """A compiled template.

    >>> chat = [{"role": "user", "content": "Hi"}]
    >>> ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ end }}{% endfor %}", {"end": "!"}).render(
    ...     chat
    ... )
    'user: Hi!'
    """

    def __init__(
        self, source: str, variables: Mapping[str, Any], *, today: date | None = None, name: str = "chat template"
    ) -> None:
        """Compile the template; `variables` are tokens that it may use (`bos_token`), `today` is for `strftime_now`."""
        self.source = source
        self.name = name
        self._variables = dict(variables)
        self._today = today
        self._tracer: TemplateTracer | None = None
        self._plain = self._compile(marks=False)
        self.marks_generation = "generation" in source and _has_generation(source)
        self._marked = self._compile(marks=True) if self.marks_generation else self._plain

    @property
    def begin_token(self) -> str:
        """The token that begins a conversation, if the tokenizer has one."""
        return str(self._variables.get("bos_token") or "")

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, variables: Mapping[str, Any] = _NOTHING
    ) -> str:
        """Render a conversation. With `add_generation_prompt` the text ends with what begins the next answer."""
        if self._tracer is not None:
            text = self._tracer.render(
                messages, tools, variables, lambda: self._render_with(self._plain, messages, tools, variables)
            )
            if text is not None:
                return text
        return self._render_with(self._plain, messages, tools, variables)

    def start_tracing(self, restart_clock: Callable[[], None] | None = None) -> None:
        """Trace the template from now on, where that is possible: the same texts, in less time."""
        self._tracer = TemplateTracer(self.source, self._variables, self._today, restart_clock)
        self._tracer.load()

    def begin_record(self) -> None:
        """Tell the tracer that the renderings that follow are of another record."""
        if self._tracer is not None:
            self._tracer.begin_record()

    @property
    def tracer(self) -> TemplateTracer | None:
        """The tracer, if the template is traced."""
        return self._tracer

    @contextmanager
    def without_tracing(self) -> Iterator[None]:
        """Render with Jinja inside of this `with`."""
        tracer, self._tracer = self._tracer, None
        try:
            yield
        finally:
            self._tracer = tracer

    def render_marked(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, variables: Mapping[str, Any] = _NOTHING
    ) -> str:
        """Like `render`, with marks around what the template says the assistant writes."""
        return self._render_with(self._marked, messages, tools, variables)

    def _render_with(self, template: Any, messages: Any, tools: Any, variables: Mapping[str, Any]) -> str:
        arguments = {"add_generation_prompt": False, "documents": None, **self._variables, **variables}
        arguments |= {"messages": messages, "tools": tools or None}
        try:
            text: str = template.render(arguments)
        except RecursionError:
            raise TemplateError("the template calls itself without end") from None
        except MemoryError:  # about the machine, not the record
            raise
        except Exception as error:  # an untrusted program may raise anything
            raise TemplateError(f"{type(error).__name__}: {error}") from None
        return text

    def _compile(self, *, marks: bool) -> Any:
        import jinja2  # noqa: PLC0415

        environment = make_environment(self._today, marks=marks)
        try:
            code = _compile_source(self.source, marks=marks)
        except jinja2.TemplateSyntaxError as error:
            line = self.source.splitlines()[error.lineno - 1] if self.source else ""
            raise UsageError(
                f"{self.name}, line {error.lineno}: {error.message}\n    {line.strip():.200}",
                help="fix the template, or name another one",
            ) from error
        except Exception as error:  # a constant that cannot be computed, an expression too deep
            raise UsageError(f"{self.name} cannot be compiled: {error}", help="fix the template") from error
        # Jinja copies the globals for every rendering. Of a chain of dicts that takes as long as the rendering.
        return environment.template_class.from_code(environment, code, dict(environment.globals))


@lru_cache(maxsize=64)
def _compile_source(source: str, *, marks: bool) -> CodeType:
    """Compile a template, once a process: a plan, its trial and a run in the same process each ask for it."""
    return make_environment(None, marks=marks).compile(source)


@lru_cache(maxsize=64)
def _has_generation(source: str) -> bool:
    from jinja2.nodes import ExtensionAttribute  # noqa: PLC0415

    nodes = make_environment(None, marks=True).parse(source).find_all(ExtensionAttribute)
    return any(getattr(node, "name", None) == MARK_METHOD for node in nodes)
