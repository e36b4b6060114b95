"""The number of tokens of an image: as many as the processors of transformers make of it."""

import random

import numpy as np
import pytest
from PIL import Image

from gristmill.core.errors import UsageError
from gristmill.images.image_tokens import FAMILIES, make_image_rule

SIZES = [(1, 1), (28, 28), (13, 40), (640, 480), (1, 200), (200, 1), (1999, 37), (3000, 2000), (27, 5399), (336, 336)]
SIZES += [(random.Random(n).randint(1, 900), random.Random(-n).randint(30, 900)) for n in range(1, 16)]
QWEN_SETTINGS = [{}, {"min_pixels": 50_000, "max_pixels": 120_000}, {"patch_size": 16, "merge_size": 2}]
QWEN_SETTINGS += [{"size": {"shortest_edge": 3136, "longest_edge": 400_000}, "patch_size": 14, "merge_size": 1}]


def image(width, height):
    return Image.fromarray(np.full((height, width, 3), 99, np.uint8))


@pytest.mark.parametrize("settings", QWEN_SETTINGS)
def test_qwen_counts_like_its_processor(settings):
    processor = pytest.importorskip("transformers.models.qwen2_vl").Qwen2VLImageProcessor(**settings)
    rule = make_image_rule("qwen2_5_vl", settings)
    for width, height in SIZES:
        patches = processor.get_number_of_image_patches(height, width, {})
        assert rule.count(width, height) == patches // processor.merge_size**2, (width, height)
    for width, height in SIZES[:4]:
        grid = processor(images=[image(width, height)], return_tensors="pt")["image_grid_thw"]
        assert rule.count(width, height) == int(grid.prod()) // processor.merge_size**2


@pytest.mark.parametrize("settings", QWEN_SETTINGS)
def test_qwen_counts_like_its_processor_at_any_aspect(settings):
    """Tiny, huge and very long images; about one of eight is refused."""
    processor = pytest.importorskip("transformers.models.qwen2_vl").Qwen2VLImageProcessor(**settings)
    rule = make_image_rule("qwen2_vl", settings)
    numbers = random.Random(3)
    for _ in range(400):
        short = int(10 ** numbers.uniform(0, 4))
        size = [short, int(short * 10 ** numbers.uniform(0, 2.6))]
        numbers.shuffle(size)
        width, height = size
        try:
            patches = processor.get_number_of_image_patches(height, width, {})
        except ValueError:
            with pytest.raises(ValueError, match="200 times"):
                rule.count(width, height)
        else:
            assert rule.count(width, height) == patches // processor.merge_size**2, size


def test_qwen_refuses_what_its_processor_refuses():
    processor = pytest.importorskip("transformers.models.qwen2_vl").Qwen2VLImageProcessor()
    with pytest.raises(ValueError, match="aspect"):
        processor(images=[image(2010, 10)], return_tensors="pt")
    with pytest.raises(ValueError, match="200 times"):
        make_image_rule("qwen2_vl", {}).count(2010, 10)


@pytest.mark.parametrize("crop", [336, 224])
def test_llava_counts_the_patches_of_the_cut_image(crop):
    processor = pytest.importorskip("transformers.models.clip").CLIPImageProcessor(
        size={"shortest_edge": crop}, crop_size={"height": crop, "width": crop}
    )
    settings = {"crop_size": {"height": crop, "width": crop}, "patch_size": 14}
    rule = make_image_rule("llava", settings)
    for size in SIZES[3:6]:
        pixels = processor(images=[image(*size)], return_tensors="pt")["pixel_values"]
        assert rule.count(*size) == (pixels.shape[2] // 14) * (pixels.shape[3] // 14)
    settings |= {"vision_feature_select_strategy": "full", "num_additional_image_tokens": 1}
    assert make_image_rule("llava", settings).count(5, 5) == rule.fixed + 1


def test_a_file_without_a_crop_size_leaves_it_to_clip():
    processor = pytest.importorskip("transformers.models.clip").CLIPImageProcessor(size={"shortest_edge": 336})
    pixels = processor(images=[image(400, 500)], return_tensors="pt")["pixel_values"]
    rule = make_image_rule("llava", {"size": {"shortest_edge": 336}, "image_processor_type": "CLIPImageProcessor"})
    assert rule.fixed == (pixels.shape[2] // 14) * (pixels.shape[3] // 14)


def test_gemma_and_fixed_numbers_do_not_look_at_the_size():
    assert {make_image_rule("gemma3", {}).count(*size) for size in SIZES} == {256}
    assert make_image_rule("gemma3", {"image_seq_length": 64}).count(1, 9) == 64
    assert make_image_rule(7, {}, "<img>").count(1, 9) == 7
    assert make_image_rule(7, {}, "<img>").token == "<img>"


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("llava_next", {}, "no rule for images of 'llava_next'"),
        (None, {}, "nothing says how many"),
        (None, {"processor_class": "Idefics3Processor"}, "no rule for images of 'Idefics3Processor'"),
        ("qwen2_vl", {"do_resize": False}, "do_resize: false"),
        ("gemma3", {"do_pan_and_scan": True}, "do_pan_and_scan: true"),
        ("llava", {"do_center_crop": False}, "do_center_crop: false"),
        ("llava", {"patch_size": "large"}, "cannot be used"),
        ("llava", {"image_processor_type": "SiglipImageProcessor"}, "llava with a SiglipImageProcessor"),
        ("llava", {"vision_feature_select_strategy": "full"}, "no num_additional_image_tokens"),
        ("qwen2_vl", {"size": 7}, "cannot be used"),
        (0, {}, "cannot have 0 tokens"),
    ],
)
def test_a_family_without_a_rule_is_refused(family, settings, message):
    with pytest.raises(UsageError, match=message):
        make_image_rule(family, settings)


def test_the_settings_name_the_family():
    assert {make_image_rule(None, {"processor_class": "Qwen2_5_VLProcessor"}).family} <= set(FAMILIES)
