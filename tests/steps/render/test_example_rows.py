"""Chats with images, from the recipe to batches: the ids of the model's processor, and the images in their order."""

import json
import tarfile

import numpy as np
import pytest
from gristmill_testing.foreign_files import upload
from gristmill_testing.small_tokenizers import trained
from PIL import Image, ImageOps

import gristmill as gm
from gristmill.core.errors import UsageError
from gristmill.steps import Pack, Read, Render, Tokenize
from gristmill.stream import Samples, Stream

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
SPECIALS += ("<|video_pad|>", "<image>", "<start_of_image>", "<end_of_image>", "<image_soft_token>")
PLACEHOLDERS = {
    "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "llava": "<image>",
    "gemma3": "<start_of_image>",
}
IMAGE_TOKENS = {"qwen2_vl": "<|image_pad|>", "llava": "<image>", "gemma3": "<image_soft_token>"}
PARTS = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{% if part.type == 'image' %}PLACEHOLDER{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
SIZES = {"cats/1.png": (70, 90), "cats/2.jpg": (300, 200), "dogs/1.png": (28, 28), "dogs/turned.jpg": (200, 60)}


def picture(name):
    width, height = SIZES[name]
    return Image.fromarray(np.random.default_rng(len(name)).integers(0, 255, (height, width, 3), np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for name in SIZES:
        path = folder / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        if "turned" in name:
            exif[0x0112] = 6
        picture(name).save(path, exif=exif)
    (folder / "photos" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    for number, names in enumerate([("cats/1.png", "cats/2.jpg"), ("dogs/1.png", "dogs/turned.jpg", "broken.png")]):
        with tarfile.open(folder / f"photos-{number}.tar", "w") as tar:
            for name in names:
                tar.add(folder / "photos" / name, name)
    trained(folder / "tokenizer", specials=SPECIALS)
    return folder


def ask(*parts):
    return {"role": "user", "content": list(parts)}


def see(name):
    return {"type": "image", "image": name}


def say(text):
    return {"type": "text", "text": text}


ANSWER = {"role": "assistant", "content": "A mill, and corn."}
CHATS = [
    {"messages": [ask(see("cats/1.png"), say("What is this?")), ANSWER]},
    {"messages": [ask({"type": "image_url", "image_url": {"url": "cats/2.jpg"}}, say("And this?")), ANSWER]},
    {"messages": [ask(say("Compare "), see("dogs/1.png"), say(" and "), see("./cats/1.png")), ANSWER]},
    {"messages": [ask({"type": "image"}, say("Hm?")), ANSWER], "images": [{"path": "dogs/1.png"}]},
    {"messages": [ask(see("dogs/turned.jpg")), ANSWER, {"role": "user", "content": "Why <image>?"}, ANSWER]},
    {
        "conversations": [
            {"from": "human", "value": "<image>\nWhat?"},
            {"from": "gpt", "value": "Corn."},
            {"from": "human", "value": "<image><image> which?"},
            {"from": "gpt", "value": "The mill."},
        ],
        "images": ["cats/1.png", "cats/2.jpg", "dogs/1.png"],
    },
    {"messages": [{"role": "user", "content": "No image"}, ANSWER]},
]
IMAGES = [["cats/1.png"], ["cats/2.jpg"], ["dogs/1.png", "cats/1.png"], ["dogs/1.png"], ["dogs/turned.jpg"]]
IMAGES += [["cats/1.png", "cats/2.jpg", "dogs/1.png"], []]
BAD = {
    "image_not_found": {"messages": [ask(see("cats/9.png")), ANSWER]},
    "not_an_image": {"messages": [ask(see("broken.png")), ANSWER]},
    "missing_image": {"messages": [ask({"type": "image"}), ANSWER]},
    "unplaced_image": {"messages": [ask(say("Hm?")), ANSWER], "images": ["cats/1.png"]},
    "image_not_named": {
        "messages": [ask({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}), ANSWER]
    },
}


def run(folder, output, chats, *, template=None, row_length=None, **render):
    (output / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    if template is not None:
        (output / "template.jinja").write_text(template)
    render = {"images": str(folder / "photos"), "image_tokens": "qwen2_vl"} | render
    steps = [
        Render(template=str(output / "template.jinja") if template else "chatml", **render),
        Tokenize(tokenizer=str(folder / "tokenizer")),
    ]
    recipe = gm.Recipe(
        sources={"chats": Read(read=str(output / "chats.jsonl"))},
        steps=[*steps, Pack(row_length=row_length)] if row_length else steps,
        output=str(output / "out"),
        max_quarantine=1.0,
    )
    return gm.run(recipe, backend="serial", progress=False)


def find_id(folder, token):
    tokenizer = json.loads((folder / "tokenizer" / "tokenizer.json").read_text())
    return next(added["id"] for added in tokenizer["added_tokens"] if added["content"] == token)


def names_in(row):
    return [image["member"] for image in row["images"]]


def make_processor(folder, family):
    """The processor of transformers, as a function of a text with placeholders and its images."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer" / "tokenizer.json"),
        extra_special_tokens={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": IMAGE_TOKENS[family],
        },
    )
    if family == "qwen2_vl":  # its whole processor also wants torchvision, for films

        def process(text, images):
            if images:
                grids = transformers.Qwen2VLImageProcessor()(images=images, return_tensors="pt")["image_grid_thw"]
                before, *behind = text.split("<|image_pad|>")
                for grid, piece in zip(grids, behind, strict=True):
                    before += "<|image_pad|>" * (int(grid.prod()) // 4) + piece
                text = before
            return tokenizer(text)["input_ids"]

        return process
    if family == "gemma3":
        processor = transformers.Gemma3Processor(transformers.Gemma3ImageProcessor(), tokenizer)
    else:
        cut = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
        processor = transformers.LlavaProcessor(
            transformers.CLIPImageProcessor(**cut),
            tokenizer,
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )
    return lambda text, images: processor(text=[text], images=[images] if images else None)["input_ids"][0]


def write_text(chat, placeholder):
    """Write a chat as the templates of these tests do."""
    messages = chat.get("messages") or [
        {"role": {"human": "user", "gpt": "assistant"}[turn["from"]], "content": turn["value"]}
        for turn in chat["conversations"]
    ]
    text = ""
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            content = "".join(part.get("text", placeholder) for part in content)
        elif "images" in chat:
            content = content.replace("<image>", placeholder)
        text += f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"
    return text


@pytest.mark.parametrize("knows_parts", [True, False])
@pytest.mark.parametrize("family", PLACEHOLDERS)
def test_rows_have_the_ids_of_the_processor(folder, tmp_path, family, knows_parts):
    template = PARTS.replace("PLACEHOLDER", PLACEHOLDERS[family]) if knows_parts else None
    run(folder, tmp_path, CHATS, template=template, image_tokens=family)
    dataset = gm.open_dataset(tmp_path / "out")
    assert [names_in(dataset[row]) for row in range(len(dataset))] == IMAGES
    process = make_processor(folder, family)
    image_id = find_id(folder, IMAGE_TOKENS[family])
    for row, (chat, names) in enumerate(zip(CHATS, IMAGES, strict=True)):
        stored = dataset[row]
        is_image = stored["input_ids"] == image_id
        assert sum(image["tokens"] for image in stored["images"]) == int(is_image.sum())
        assert not stored["loss_mask"][is_image].any()
        assert stored["loss_mask"].any()
        text = write_text(chat, PLACEHOLDERS[family])
        if "Why <image>" not in text:  # that is text here; transformers would take it for an image
            pictures = [ImageOps.exif_transpose(Image.open(folder / "photos" / name)).convert("RGB") for name in names]
            assert stored["input_ids"].tolist() == list(map(int, process(text, pictures)))


def test_a_file_url_may_be_quoted(folder, tmp_path):
    path = tmp_path / "photos" / "a mill 100%.png"
    path.parent.mkdir()
    picture("dogs/1.png").save(path)
    chats = [{"messages": [ask(see(name)), ANSWER]} for name in (path.as_uri(), path.name)]
    dataset = run(folder, tmp_path, chats, images=str(path.parent)).dataset()
    assert [names_in(row) for row in dataset] == [[path.name]] * 2


def test_a_text_with_the_mark_of_images_is_a_text(folder, tmp_path):
    odd = {"messages": [{"role": "user", "content": "\ufdda?"}, ANSWER]}
    run(folder, tmp_path, [odd] * 5)
    (tmp_path / "off").mkdir()
    run(folder, tmp_path / "off", [odd] * 5, trace="off")
    hashes = {gm.open_dataset(path).manifest.dataset_hash for path in (tmp_path / "out", tmp_path / "off" / "out")}
    assert len(hashes) == 1
    assert len(gm.open_dataset(tmp_path / "out")) == 5


def test_what_somebody_wrote_stands_for_no_image(folder, tmp_path):
    run(folder, tmp_path, [CHATS[4]] * 3, template=PARTS.replace("PLACEHOLDER", "<image>"), image_tokens="llava")
    dataset = gm.open_dataset(tmp_path / "out")
    assert [names_in(dataset[row]) for row in range(3)] == [["dogs/turned.jpg"]] * 3
    assert "Why <image>?" in dataset.decode(0)
    assert dataset.decode(0).count("<image>") == 576 + 1


@pytest.mark.parametrize("template", [None, PARTS.replace("PLACEHOLDER", PLACEHOLDERS["qwen2_vl"])])
def test_packed_rows_stream_with_their_images(folder, tmp_path, template):
    chats = [json.loads(json.dumps(CHATS[row % len(CHATS)])) for row in range(60)]
    traced = run(folder, tmp_path, chats, template=template, row_length=256)
    (tmp_path / "off").mkdir()
    untraced = run(folder, tmp_path / "off", chats, template=template, row_length=256, trace="off")
    assert traced.manifest.dataset_hash == untraced.manifest.dataset_hash
    stream = Stream(tmp_path / "out", samples=Samples(images=folder / "photos", decode="pil"), epochs=1)
    references = Stream(tmp_path / "out", epochs=1)
    image_id = find_id(folder, "<|image_pad|>")
    num_images = 0
    for batch, named in zip(stream.batches(4), references.batches(4), strict=True):
        for ids, pictures, row in zip(batch["input_ids"], batch["images"], named["images"], strict=True):
            assert sum(reference.tokens for reference in row) == int((ids == image_id).sum())
            for image, reference in zip(pictures, row, strict=True):
                width, height = SIZES[reference.member]
                assert image.size == ((height, width) if "turned" in reference.member else (width, height))
            # Each image is one run of its tokens.
            starts = np.flatnonzero(np.diff((ids == image_id).astype(int), prepend=0) == 1)
            ends = np.flatnonzero(np.diff((ids == image_id).astype(int), append=0) == -1) + 1
            assert (ends - starts).tolist() == [reference.tokens for reference in row]
            num_images += len(row)
    assert num_images == sum(len(IMAGES[row % len(CHATS)]) for row in range(60))


def test_torch_batches_have_the_bytes_in_order(folder, tmp_path):
    torch_stream = pytest.importorskip("gristmill.stream.torch")
    run(folder, tmp_path, CHATS, row_length=512, images=str(folder / "photos-*.tar"))
    stream = Stream(tmp_path / "out", samples=Samples(images=folder / "photos-*.tar"), epochs=1, shuffle=False)
    batches = list(torch_stream.TorchLoader(stream, 2, rank=0, world_size=1))
    dataset = gm.open_dataset(tmp_path / "out")
    rows = [row for batch in batches for row in batch["images"]]
    for row, images in enumerate(rows[: len(dataset)]):
        stored = dataset[row]["images"]
        assert {image["shard"] for image in stored} <= {"photos-0.tar", "photos-1.tar"}
        assert images == [(folder / "photos" / image["member"]).read_bytes() for image in stored]
    assert sum(map(len, rows)) == sum(map(len, IMAGES))


def test_rows_and_images_are_streamed_from_a_store(folder, tmp_path, s3):
    run(folder, tmp_path, CHATS, images=str(folder / "photos-*.tar"))
    url = upload(tmp_path / "out", s3, "out")
    for tar in folder.glob("photos-*.tar"):
        s3.put(tar.name, tar.read_bytes())
    local = Stream(tmp_path / "out", samples=Samples(images=folder / "photos-*.tar"), epochs=1)
    remote = Stream(url, samples=Samples(images=f"{s3.url}/photos-*.tar"), epochs=1, cache=tmp_path / "cache")
    images = [row for batch in remote.batches(4) for row in batch["images"]]
    assert images == [row for batch in local.batches(4) for row in batch["images"]]
    assert sum(map(len, images)) == sum(map(len, IMAGES))


def test_long_chats_lose_their_oldest_images(folder, tmp_path):
    turns = [message for name in ("cats/2.jpg", "dogs/1.png") for message in (ask(see(name), say("?")), ANSWER)]
    run(folder, tmp_path, [{"messages": turns}], row_length=60)
    [row] = gm.open_dataset(tmp_path / "out")
    assert names_in(row) == ["dogs/1.png"]


def test_bad_images_are_quarantined_with_a_reason(folder, tmp_path):
    run(folder, tmp_path, [*CHATS, *BAD.values()])
    [path] = (tmp_path / "out" / "quarantine").iterdir()
    lines = path.read_text().splitlines()
    assert [json.loads(line)["reason"] for line in lines] == list(BAD)
    assert len(gm.open_dataset(tmp_path / "out")) == len(CHATS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_tokens": "llava_onevision"}, "no rule for images of 'llava_onevision'"),
        ({"image_tokens": None}, "nothing says how many"),
        ({"image_tokens": 5, "image_token": "<img>"}, "no special token <img>"),
        ({"images": "nowhere"}, "nowhere"),
        ({"too_long": "cut"}, "cannot be cut"),
    ],
)
def test_what_cannot_work_is_refused_by_the_plan(folder, tmp_path, changes, message):
    with pytest.raises(UsageError, match=message):
        run(folder, tmp_path, CHATS, **changes)


def test_the_files_of_the_processor_decide(folder, tmp_path):
    settings = {"processor_class": "Qwen2VLProcessor", "max_pixels": 28 * 28 * 4}
    (folder / "tokenizer" / "preprocessor_config.json").write_text(json.dumps(settings))
    try:
        run(folder, tmp_path, CHATS, image_tokens=None)
    finally:
        (folder / "tokenizer" / "preprocessor_config.json").unlink()
    assert max(image["tokens"] for row in gm.open_dataset(tmp_path / "out") for image in row["images"]) == 4


def test_datasets_with_images_are_not_read_or_exported_without_them(folder, tmp_path):
    run(folder, tmp_path, CHATS)
    with pytest.raises(UsageError, match="refers to images"):
        gm.export(tmp_path / "out", to="jsonl", path=tmp_path / "a")
    gm.export(tmp_path / "out", to="jsonl", path=tmp_path / "b", columns="stored", backend="serial")
    [file] = tmp_path.glob("b*")
    assert names_in(json.loads(file.read_text().splitlines()[0])) == IMAGES[0]
    recipe = gm.Recipe(
        sources={"again": Read(read=str(tmp_path / "out"))}, steps=[Pack(row_length=512)], output=str(tmp_path / "c")
    )
    with pytest.raises(UsageError, match="chats with images"):
        gm.run(recipe, backend="serial")
    with pytest.raises(UsageError, match="only refer to images"):
        Stream(tmp_path / "out", samples=Samples(decode="pil"))
