"""How many tokens an image becomes, by a rule for each family of models, from its width and height alone.

    qwen2_vl    640 x 480 pixels  →  resized to 644 x 476, so that 28 divides both sides  →  23 * 17 = 391 tokens
    llava       any               →  cut to 336 x 336, patches of 14 pixels               →  24 * 24 = 576 tokens
    gemma3      any               →  256 tokens, between two tokens and two empty lines

The numbers in a rule come from the files of the model's processor, next to its tokenizer. A family without a rule is
refused: a wrong number would only show in training, if at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_ASPECT = 200
_MAX_TOKENS = 1 << 20
_QWEN = ("qwen2_vl", "qwen2_5_vl")
FAMILIES = (*_QWEN, "llava", "gemma3")
_PROCESSORS = {
    "Qwen2VLProcessor": "qwen2_vl",
    "Qwen2_5_VLProcessor": "qwen2_5_vl",
    "LlavaProcessor": "llava",
    "Gemma3Processor": "gemma3",
}
_KNOWN = f"rules exist for {', '.join(FAMILIES)}; a number is for models with as many tokens for every image"


class ImageRule(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens of an image, and the texts that stand for it."""

    family: str
    token: str
    """The special token that is repeated, once for each token of the image."""
    placeholder: str
    """What a template writes for an image."""
    inline: str
    """The same for templates that know of no images: it is put into the text of the message."""
    before: str = ""
    """What the model's processor writes around the repeated token instead of the placeholder."""
    after: str = ""
    fixed: int | None = None
    """The number of tokens of every image; None: it depends on the size."""
    factor: int = 28
    """Both sides become multiples of this; a square of this side is a token."""
    min_pixels: int = 0
    max_pixels: int = 0

    @property
    def expansion(self) -> str:
        """What takes the place of the placeholder: the token only once, because it is repeated when it has an id."""
        return f"{self.before}{self.token}{self.after}"

    def count(self, width: int, height: int) -> int:
        """Count the tokens of an image of this size.

        >>> make_image_rule("qwen2_vl", {}).count(640, 480)
        391

        Raises:
            ValueError: The model's processor refuses such an image.
        """
        if self.fixed is not None:
            return self.fixed
        if max(width, height) > _MAX_ASPECT * min(width, height):
            raise ValueError(
                f"{width} x {height} pixels: one side is more than {_MAX_ASPECT} times as long as the other"
            )
        factor = self.factor
        rows, columns = round(height / factor), round(width / factor)
        if rows * columns * factor * factor > self.max_pixels:
            scale = math.sqrt((height * width) / self.max_pixels)
            rows = max(1, math.floor(height / scale / factor))
            columns = max(1, math.floor(width / scale / factor))
        elif rows * columns * factor * factor < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (height * width))
            rows, columns = math.ceil(height * scale / factor), math.ceil(width * scale / factor)
        return rows * columns


def make_image_rule(family: str | int | None, settings: Mapping[str, Any], token: str | None = None) -> ImageRule:
    """Make the rule of a family, with the settings of its processor; None: of the family that the settings name.

    Raises:
        UsageError: There is no rule for the family, or for these settings.
    """
    if isinstance(family, int):
        if not 1 <= family <= _MAX_TOKENS:
            raise UsageError(f"image_tokens: an image cannot have {family} tokens")
        name = token or "<image>"
        return ImageRule(family="fixed", token=name, placeholder=name, inline=name, fixed=family)
    family = _detect_family(settings) if family is None else family
    if family not in FAMILIES:
        nearest = find_nearest(family, FAMILIES)
        raise UsageError(
            f"image_tokens: there is no rule for images of {family!r}",
            help=_KNOWN + (f"; did you mean {nearest}?" if nearest else ""),
        )
    if token is not None:
        raise UsageError("image_token is for a fixed number of image_tokens", help="leave it out")
    try:
        return _MAKERS[family](family, settings)
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UsageError(f"image_tokens: the settings of the processor cannot be used: {error!r:.200}") from None


def _detect_family(settings: Mapping[str, Any]) -> str:
    name = settings.get("processor_class")
    if name is None:
        raise UsageError(
            "image_tokens: nothing says how many tokens an image has",
            help="name the family, or put the model's preprocessor_config.json next to its tokenizer; " + _KNOWN,
        )
    return _PROCESSORS.get(name, str(name))


def _make_qwen_rule(family: str, settings: Mapping[str, Any]) -> ImageRule:
    _refuse(settings, "do_resize", value=False)
    size = settings.get("size") or {}
    merge_size = int(settings.get("merge_size", 2))
    token = "<|image_pad|>"
    return ImageRule(
        family=family,
        token=token,
        placeholder=token,
        inline=f"<|vision_start|>{token}<|vision_end|>",
        factor=int(settings.get("patch_size", 14)) * merge_size,
        min_pixels=int(settings.get("min_pixels") or size.get("shortest_edge") or 56 * 56),
        max_pixels=int(settings.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280),
    )


def _make_llava_rule(family: str, settings: Mapping[str, Any]) -> ImageRule:
    _refuse(settings, "do_center_crop", value=False)
    _refuse(settings, "do_pad", value=True)
    processor = settings.get("image_processor_type") or settings.get("feature_extractor_type")
    if processor is not None and not str(processor).startswith("CLIP"):
        raise UsageError(f"image_tokens: there is no rule for llava with a {processor}", help=_KNOWN)
    strategy = settings.get("vision_feature_select_strategy") or "default"
    if strategy != "default" and "num_additional_image_tokens" not in settings:
        raise UsageError(
            f"image_tokens: the processor has vision_feature_select_strategy: {strategy}, but no "
            "num_additional_image_tokens, and there is no rule for that",
            help=_KNOWN,
        )
    # A file that names no crop_size leaves it to CLIP, which has 224; without any file it is LLaVA 1.5.
    crop = settings.get("crop_size") or (336 if processor is None and "size" not in settings else 224)
    sides = [crop, crop] if isinstance(crop, int) else [crop["height"], crop["width"]]
    patch = int(settings.get("patch_size") or 14)
    # The processor counts the class token of the vision model and leaves it out again; older files name neither.
    added = int(settings.get("num_additional_image_tokens", 1))
    left_out = 1 if strategy == "default" else 0
    count = (sides[0] // patch) * (sides[1] // patch) + added - left_out
    token = str(settings.get("image_token") or "<image>")
    return ImageRule(family=family, token=token, placeholder=token, inline=token, fixed=count)


def _make_gemma_rule(family: str, settings: Mapping[str, Any]) -> ImageRule:
    _refuse(settings, "do_pan_and_scan", value=True)
    begin, end = "<start_of_image>", "<end_of_image>"
    return ImageRule(
        family=family,
        token="<image_soft_token>",
        placeholder=begin,
        inline=begin,
        before=f"\n\n{begin}",
        after=f"{end}\n\n",
        fixed=int(settings.get("image_seq_length") or 256),
    )


_MAKERS = {**dict.fromkeys(_QWEN, _make_qwen_rule), "llava": _make_llava_rule, "gemma3": _make_gemma_rule}


def _refuse(settings: Mapping[str, Any], name: str, *, value: bool) -> None:
    if settings.get(name) is value:
        raise UsageError(
            f"image_tokens: the processor has {name}: {str(value).lower()}, and there is no rule for that", help=_KNOWN
        )
