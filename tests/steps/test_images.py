"""`images`: each kind of bad image has its reason, untouched images keep their bytes, changed ones lose their EXIF."""

import io

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.pictures import (
    animation,
    bomb,
    broken_exif,
    encode,
    make_photo,
    noted_png,
    photo,
    turned_photo,
)
from PIL import Image

from gristmill.core.errors import UsageError
from gristmill.core.media import find_image_extension, make_member_field
from gristmill.core.records import ORIGIN, make_origins
from gristmill.images.codec import MAX_DECODED_PIXELS, ImageError, decode_image, open_image
from gristmill.steps import Images


def samples(contents, name="image", **columns):
    contents = list(contents)
    fields = [pa.field(ORIGIN, make_origins(1, pa.array([], pa.uint64())).type)]
    fields.append(make_member_field(name, pa.large_binary(), name))
    arrays = [make_origins(1, pa.array(range(len(contents)), pa.uint64())), pa.array(contents, pa.large_binary())]
    for other, values in columns.items():
        fields.append(make_member_field(other, pa.large_binary(), other))
        arrays.append(pa.array(values, pa.large_binary()))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def apply(step, *contents, **columns):
    batch = samples(contents, **columns)
    kernel = step.load()
    kernel.begin_cell()
    result = kernel.apply(batch, seed=0)
    assert result.batch.schema.equals(step.output_schema(batch.schema))
    num_gone = sum(result.dropped.values()) + len(result.quarantined)
    assert batch.num_rows == result.batch.num_rows + num_gone
    return result


def reopened(content):
    image = Image.open(io.BytesIO(content))
    image.load()
    return image


BAD = {
    "empty_image": b"",
    "not_an_image": b"hello, I am a text",
    "truncated_image": photo(1)[:-300],
    "image_bomb": bomb(),
    "animated": animation(),
    "corrupt_image": photo(3, "PNG")[:60] + b"\0" * 200 + photo(3, "PNG")[260:],
}


@pytest.mark.parametrize("reason", BAD)
@pytest.mark.parametrize("options", [{}, {"resize": 8, "reencode": "jpeg"}])
def test_every_bad_image_has_its_reason(reason, options):
    result = apply(Images(**options), photo(1), BAD[reason], photo(2))
    assert [record.reason for record in result.quarantined] == [reason]
    assert [origin["position"] for origin in result.batch.column(ORIGIN).to_pylist()] == [0, 2]


@pytest.mark.parametrize("length", [30, 200, 600])
def test_an_image_that_ends_in_its_header_is_truncated(length):
    [record] = apply(Images(), photo(1), photo(1)[:length]).quarantined
    assert record.reason == "truncated_image"


def test_a_bomb_is_refused_by_its_header():
    """25 GB of pixels are never allocated: the test itself would not survive it."""
    result = apply(Images(), bomb(200_000, 200_000), bomb(20_000, 13_500))
    assert [record.reason for record in result.quarantined] == ["image_bomb", "image_bomb"]


def test_a_bomb_has_more_pixels_than_the_limit():
    assert open_image(bomb(MAX_DECODED_PIXELS // 10, 10)).size == (17_895_697, 10)
    with pytest.raises(ImageError, match="178,956,970"):
        open_image(bomb(MAX_DECODED_PIXELS // 10 + 1, 10))


def test_without_resize_and_reencode_no_byte_is_touched():
    contents = [photo(1), turned_photo(2, 6), photo(3, "PNG"), photo(4, "WEBP"), broken_exif(), noted_png()]
    result = apply(Images(min_width=2, keep_metadata=False), *contents)
    assert result.batch.column("image").to_pylist() == contents


@pytest.mark.parametrize("options", [{}, {"reencode": "jpeg"}, {"reencode": "jpeg", "keep_metadata": True}])
def test_a_broken_exif_block_is_counted_and_the_image_stays(options):
    result = apply(Images(**options), broken_exif(), turned_photo(2, 6))
    assert (result.batch.num_rows, result.counters["broken_exif"]) == (2, 1)
    assert decode_image(result.batch.column("image")[0].as_py()).size == (48, 40)
    has_exif = "exif" in reopened(result.batch.column("image")[1].as_py()).info
    assert has_exif == (options.get("keep_metadata") or not options)


def test_limits_drop_with_their_own_names():
    contents = [photo(1, width=9), photo(2, height=9), photo(3, width=200), photo(4, width=60, height=20), photo(5)]
    step = Images(min_width=10, min_height=10, max_pixels=7000, max_aspect=2)
    result = apply(step, *contents)
    assert result.dropped == {"min_width": 1, "min_height": 1, "max_pixels": 1, "max_aspect": 1}
    measured = [result.rule_values[result.reasons[code - 1]].at(row) for row, code in enumerate(result.codes) if code]
    assert {limit for _, limit in measured} == {10, 7000, 2}
    assert sum(limit == 10 and value < 10 for value, limit in measured) == 2
    assert result.batch.column("image").to_pylist() == [contents[4]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_as_pillow_applies_it(orientation):
    from PIL import ImageOps

    content = turned_photo(7, orientation)
    [changed] = apply(Images(reencode="png"), content).batch.column("image").to_pylist()
    upright = ImageOps.exif_transpose(reopened(content))
    assert np.array_equal(np.asarray(reopened(changed)), np.asarray(upright))
    assert not reopened(changed).getexif()


def test_limits_see_the_upright_image():
    wide = turned_photo(1, 6)  # 48 x 40 that is shown as 40 x 48
    assert apply(Images(min_height=45), wide).batch.num_rows == 1
    assert apply(Images(min_width=45), wide).dropped == {"min_width": 1}


@pytest.mark.parametrize("form", ["jpeg", "webp", "png"])
def test_location_goes_and_the_colour_profile_stays(form):
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif = Image.Exif()
    exif.get_ifd(0x8825)[1] = "N"
    content = photo(1, exif=exif, icc_profile=profile)
    [changed] = apply(Images(reencode=form), content).batch.column("image").to_pylist()
    assert reopened(changed).info["icc_profile"] == profile
    assert not reopened(changed).getexif()
    [kept] = apply(Images(reencode=form, keep_metadata=True), content).batch.column("image").to_pylist()
    assert reopened(kept).getexif().get_ifd(0x8825)


def test_text_chunks_are_metadata_too():
    [changed] = apply(Images(resize=8), noted_png()).batch.column("image").to_pylist()
    assert b"made at home" not in changed


def test_transparent_pixels_are_white_in_a_jpeg():
    pixels = np.zeros((8, 8, 4), np.uint8)
    for image in (Image.fromarray(pixels, "RGBA"), Image.fromarray(pixels[:, :, :2].copy(), "LA")):
        [changed] = apply(Images(reencode="jpeg"), encode(image, "PNG")).batch.column("image").to_pylist()
        assert np.asarray(reopened(changed).convert("L")).min() > 250


@pytest.mark.parametrize("form", ["jpeg", "webp", "png"])
@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(make_photo(1)).convert("CMYK"),
        Image.fromarray(make_photo(1)[:, :, 0].astype(np.uint16) << 8),
        Image.fromarray(make_photo(1)).convert("P"),
        Image.fromarray(make_photo(1)).convert("1"),
        Image.fromarray(make_photo(1)).convert("L"),
        Image.fromarray(make_photo(1)).convert("F"),
    ],
    ids=lambda image: image.mode,
)
def test_every_mode_can_be_written_in_every_format(image, form):
    stored = encode(image, "TIFF")
    [changed] = apply(Images(resize=20, reencode=form), stored).batch.column("image").to_pylist()
    assert find_image_extension(changed) == {"jpeg": "jpg"}.get(form, form)
    assert reopened(changed).size == (24, 20)
    before = np.asarray(Image.fromarray(make_photo(1)).convert("L").resize((24, 20)), float)
    after = reopened(changed)
    values = np.asarray(after, float) / (256 if after.mode.startswith("I") else 1)
    grey = values if values.ndim == 2 else np.asarray(after.convert("L"), float)
    assert np.abs(before - grey).mean() < (70 if image.mode == "1" else 12), "16 bits are scaled, not clipped to white"


@pytest.mark.parametrize(("resize", "size"), [(20, (24, 20)), ([24, 24], (24, 20)), (500, (48, 40)), ([9, 99], (9, 8))])
def test_resize_keeps_the_aspect_and_never_enlarges(resize, size):
    [changed] = apply(Images(resize=resize), photo(1)).batch.column("image").to_pylist()
    assert reopened(changed).size == size
    assert find_image_extension(changed) == "jpg"


def test_a_large_jpeg_is_decoded_smaller_with_the_same_result():
    content = photo(1, width=1200, height=900, quality=95)
    [changed] = apply(Images(resize=100, reencode="png"), content).batch.column("image").to_pylist()
    whole = reopened(content).resize((133, 100), Image.Resampling.LANCZOS)
    assert np.abs(np.asarray(reopened(changed), float) - np.asarray(whole, float)).mean() < 2


def test_first_frame_of_an_animation():
    [kept] = apply(Images(animated="first_frame"), animation()).batch.column("image").to_pylist()
    assert kept == animation()
    [changed] = apply(Images(animated="first_frame", reencode="png"), animation()).batch.column("image").to_pylist()
    assert getattr(reopened(changed), "n_frames", 1) == 1


def test_columns_named_like_formats_become_one_of_the_new_format():
    batch = samples([photo(1), None, photo(3)], name="jpg", png=[None, photo(2, "PNG"), photo(3, "PNG")])
    step = Images(reencode="webp")
    result = step.load().apply(batch, seed=0)
    assert result.batch.schema.names == [ORIGIN, "webp"]
    assert [find_image_extension(content) for content in result.batch.column("webp").to_pylist()] == ["webp", "webp"]
    assert [record.reason for record in result.quarantined] == ["several_images"]


def test_the_same_twice():
    step = Images(resize=20, reencode="webp")
    assert apply(step, photo(1)).batch.equals(apply(step, photo(1)).batch)
    assert "pil" in str(step.fingerprint_versions)


def test_a_sample_without_an_image_is_quarantined():
    assert [record.reason for record in apply(Images(), None).quarantined] == ["no_image"]


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 0},
        {"resize": 0},
        {"resize": [1]},
        {"max_aspect": 0.5},
        {"min_width": 0},
        {"reencode": "gif"},
        {"animated": "drop"},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(UsageError):
        Images(**options)


def test_records_without_images_are_refused():
    with pytest.raises(UsageError, match="no images"):
        Images().output_schema(pa.schema([("text", pa.large_string())]))
    with pytest.raises(UsageError, match="holds"):
        Images(columns=["text"]).output_schema(pa.schema([("text", pa.large_string())]))


@pytest.mark.parametrize("mode", ["P", "RGB", "L"])
@pytest.mark.parametrize("resize", [None, 16])
def test_a_colour_that_stands_for_transparent_pixels_stays_transparent(mode, resize):
    content = encode(Image.new(mode, (32, 32)), "PNG", transparency=(0, 0, 0) if mode == "RGB" else 0)
    for form, pixel in {"png": (0, 0, 0, 0), "webp": (0, 0, 0, 0), "jpeg": (255, 255, 255, 255)}.items():
        result = apply(Images(reencode=form, resize=resize), content)
        assert reopened(result.batch.column("image")[0].as_py()).convert("RGBA").getpixel((5, 5)) == pixel


@pytest.mark.parametrize("format", ["jpeg", "webp", "png"])
def test_comments_are_removed(format):
    contents = [encode(make_photo(1), "JPEG", comment=b"at home"), encode(make_photo(2), "GIF", comment=b"at home")]
    result = apply(Images(reencode=format), *contents)
    assert all(b"at home" not in content for content in result.batch.column("image").to_pylist())


def test_a_profile_of_grey_is_not_written_into_colours():
    profile = b"\0" * 16 + b"GRAY" + b"\0" * 108
    content = encode(Image.fromarray(make_photo(1)).convert("L"), "PNG", icc_profile=profile)
    kept = {}
    for form in ("jpeg", "png", "webp"):
        result = apply(Images(reencode=form), content)
        kept[form] = reopened(result.batch.column("image")[0].as_py()).info.get("icc_profile")
    assert kept == {"jpeg": profile, "png": profile, "webp": None}


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
@pytest.mark.parametrize("keep_metadata", [False, True])
def test_a_tiff_is_turned_once(compression, keep_metadata):
    exif = Image.Exif()
    exif[0x0112] = 6
    shown = make_photo(5)
    stored = encode(np.rot90(shown), "TIFF", exif=exif, compression=compression)
    assert np.array_equal(np.asarray(decode_image(stored)), shown)
    result = apply(Images(reencode="png", max_aspect=10, keep_metadata=keep_metadata), stored)
    image = reopened(result.batch.column("image")[0].as_py())
    assert np.array_equal(np.asarray(image), shown)
    assert image.getexif().get(0x0112, 1) == 1
