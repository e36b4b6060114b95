"""The images of chats, looked up while `render` is planned, and found by name while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import UsageError
from gristmill.images.image_files import ImageTable, list_images
from gristmill.images.image_tokens import ImageRule, make_image_rule
from gristmill.storage.stored_paths import decode_stored
from gristmill.text.chats import NotAChat
from gristmill.text.chats.chat_images import ChatImages
from gristmill.text.tokenizers import TokenizerFiles, read_facts

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def find_images(
    pattern: str, family: str | int | None, token: str | None, files: TokenizerFiles | None, folder: str
) -> tuple[ImageRule, ImageTable]:
    """Find the rule for image tokens and all images.

    Raises:
        UsageError: There is no rule, no image, or the tokenizer lacks a token of the rule.
    """
    if files is None:
        raise UsageError("images: image tokens are counted with a tokenizer", help="name one: tokenizer: …")
    rule = make_image_rule(family, _read_settings(files), token)
    known = read_facts(files).added_tokens
    for name in (rule.token, rule.placeholder):
        if name not in known:
            raise UsageError(
                f"images: the tokenizer has no special token {name}, which {rule.family} writes for images",
                help="name the tokenizer of the model, or with a number of image_tokens its image_token",
            )
    return rule, list_images(pattern, folder)


def make_chat_images(rule: ImageRule, table: ImageTable) -> ChatImages:
    """Make what conversations are read with."""

    def count_tokens(name: str) -> int:
        entry = table.find(name)
        if entry is None:
            raise NotAChat("image_not_found", f"there is no image {name!r:.200} in {table.root}")
        if entry.problem:
            reason, _, message = entry.problem.partition(": ")
            raise NotAChat(reason, f"the image {name!r:.200}: {message}")
        try:
            return rule.count(entry.width, entry.height)
        except ValueError as error:
            raise NotAChat("image_shape", f"the image {name!r:.200}: {error}") from None

    return ChatImages(rule.placeholder, rule.expansion, rule.inline, count_tokens)


def refer_to_images(names: Iterable[str], rule: ImageRule, table: ImageTable) -> list[dict[str, Any]]:
    """Return the references of images by name, as rows keep them."""
    entries = [entry for name in names if (entry := table.find(name)) is not None]
    return [
        {"shard": entry.shard, "member": entry.member, "tokens": rule.count(entry.width, entry.height)}
        for entry in entries
    ]


def _read_settings(files: TokenizerFiles) -> dict[str, Any]:
    """Read the settings of the processor, which newer files keep in one place."""
    settings: dict[str, Any] = {}
    for name in _PROCESSOR_FILES:
        path = Path(files.path).parent / name
        if not path.is_file():
            continue
        content = decode_stored(path.read_bytes(), dict[str, Any], path, help="restore it, or remove it")
        settings |= content
        settings |= content.get("image_processor") or {}
        if "processor_class" in content:
            settings["processor_class"] = content["processor_class"]
    return settings
