"""Finding a tokenizer: folders, files, the Hub's cache; and what is said when there is none."""

import json
import shutil

import pytest
from gristmill_testing.small_tokenizers import changed, trained

from gristmill.core.errors import UsageError
from gristmill.text.tokenizers.choose import choose_engine
from gristmill.text.tokenizers.files import find_tokenizer, read_facts


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty Hugging Face cache, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_folder_and_file_are_the_same_tokenizer(tmp_path):
    trained(tmp_path / "mine")
    by_folder, by_file = find_tokenizer("mine", str(tmp_path)), find_tokenizer("mine/tokenizer.json", str(tmp_path))
    assert by_folder == by_file
    assert set(by_folder.files) == {"tokenizer.json", "tokenizer_config.json"}
    assert all(by_folder.location(name).is_file() for name in by_folder.files)


def test_a_file_may_be_called_anything(tmp_path):
    files = trained(tmp_path / "mine")
    shutil.copy(tmp_path / "mine" / "tokenizer.json", tmp_path / "other.json")
    other = find_tokenizer("other.json", str(tmp_path))
    assert other.files["tokenizer.json"] == files.files["tokenizer.json"]
    assert other.location("tokenizer.json") == tmp_path / "other.json"


def test_content_is_what_shapes_ids_and_nothing_else(tmp_path):
    first = trained(tmp_path / "a")
    assert trained(tmp_path / "b", model_max_length=99).content == first.content
    assert trained(tmp_path / "c", eos_token="<|pad|>").content != first.content
    assert trained(tmp_path / "d", vocab_size=300).content != first.content


def test_roles(tmp_path):
    facts = read_facts(trained(tmp_path, eos_token={"content": "<|pad|>"}, pad_token="<|pad|>", bos_token=None))
    assert (facts.eos_id, facts.bos_id, facts.pad_id, facts.eos_by_name) == (1, None, 1, False)
    assert facts.vocab_size == 400
    assert facts.special_tokens == {"<|endoftext|>": 0, "<|pad|>": 1}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_json_that_nests_too_deeply_is_no_tokenizer(tmp_path, name):
    trained(tmp_path)
    (tmp_path / name).write_text('{"model": {"vocab": {}}, "normalizer": ' + '{"a":' * 20_000)
    with pytest.raises(UsageError, match=name):
        read_facts(find_tokenizer(str(tmp_path)))


def test_end_by_its_usual_name(tmp_path):
    trained(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    facts = read_facts(find_tokenizer(str(tmp_path)))
    assert (facts.eos_id, facts.eos_by_name) == (0, True)


def test_no_end_if_two_names_are_usual(tmp_path):
    trained(tmp_path, specials=("<|endoftext|>", "</s>"))
    (tmp_path / "tokenizer_config.json").unlink()
    assert read_facts(find_tokenizer(str(tmp_path))).eos_id is None


def test_role_that_is_no_token(tmp_path):
    with pytest.raises(UsageError, match="no such token"):
        read_facts(trained(tmp_path, eos_token="<|nowhere|>"))


def test_vocabulary_ends_at_the_largest_id(tmp_path):
    def far_away(data):
        added = dict(data["added_tokens"][0], id=70_000, content="<|far|>")
        data["added_tokens"].append(added)

    assert read_facts(changed(tmp_path, far_away)).vocab_size == 70_001


def test_ids_that_no_engine_would_give_are_refused(tmp_path):
    def gap(data):
        data["added_tokens"].append(dict(data["added_tokens"][0], id=70_000, content="<|far|>"))

    files = changed(tmp_path, gap)
    for engine in ("auto", "tokenizers"):
        with pytest.raises(UsageError, match="70000, but it is loaded as 400"):
            choose_engine(files, engine, specials_as_text=True)


def test_unigram_vocabulary(tmp_path):
    path = tmp_path / "tokenizer.json"
    vocab = [["<unk>", 0.0], ["a", -1.0], ["</s>", -2.0]]
    added = [{"id": 2, "content": "</s>", "special": True}]
    path.write_text(json.dumps({"model": {"type": "Unigram", "vocab": vocab}, "added_tokens": added}))
    facts = read_facts(find_tokenizer(str(path)))
    assert (facts.vocab_size, facts.eos_id) == (3, 2)


def test_nothing_there(tmp_path, hub):
    for name in ("./gone", "/gone/tokenizer", "gone/tokenizer.json", "a/b/c"):
        with pytest.raises(UsageError, match="there is no tokenizer"):
            find_tokenizer(name, str(tmp_path))


def test_folder_without_a_tokenizer(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"holds no tokenizer\.json"):
        find_tokenizer("empty", str(tmp_path))
    (tmp_path / "empty" / "tokenizer.model").touch()
    with pytest.raises(UsageError, match=r"tokenizer\.model") as caught:
        find_tokenizer("empty", str(tmp_path))
    assert "save_pretrained" in caught.value.help


def test_damaged_config(tmp_path):
    trained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UsageError, match=r"tokenizer_config\.json"):
        find_tokenizer(str(tmp_path))


def test_name_in_the_local_cache(tmp_path, hub):
    files = trained(tmp_path / "mine")
    snapshot = hub / "models--some--model" / "snapshots" / ("a" * 40)
    shutil.copytree(tmp_path / "mine", snapshot)
    refs = hub / "models--some--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    found = find_tokenizer("some/model", str(tmp_path))
    assert found.content == files.content
    assert found.path.startswith(str(hub))


@pytest.mark.parametrize("name", ["some/model", "model"])
def test_offline_the_folder_form_is_named(tmp_path, hub, name):
    with pytest.raises(UsageError, match="cannot be downloaded") as caught:
        find_tokenizer(name, str(tmp_path))
    assert "path/to/folder" in caught.value.help
