"""Training: the same texts give the same tokenizer, which transformers can load and which gives every text back."""

import json

import pytest
from gristmill_testing.scripts import run
from gristmill_testing.small_tokenizers import SENTENCES
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.text.tokenizers.check_tokenizer import check_tokenizer
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.files import find_tokenizer
from gristmill.text.tokenizers.train import save_tokenizer, train_bpe


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained")
    save_tokenizer(train_bpe(iter(SENTENCES * 5), vocab_size=320), path)
    return path


def test_same_texts_same_bytes_in_any_process(folder):
    code = (
        "import sys; from gristmill_testing.small_tokenizers import SENTENCES;"
        "from gristmill.text.tokenizers.train import train_bpe;"
        "sys.stdout.write(train_bpe(SENTENCES * 5, vocab_size=320)['tokenizer.json'].decode())"
    )
    import sys

    for _ in range(2):
        done = run("-c", f"import sys; sys.path[:] = {sys.path!r}; {code}")
        assert done.stdout == (folder / "tokenizer.json").read_text(), done.stderr


def test_transformers_loads_it(folder):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert (tokenizer.eos_token, tokenizer.eos_token_id, len(tokenizer)) == ("<|endoftext|>", 0, 320)
    ids, _ = load_engine(find_tokenizer(str(folder))).encode([SENTENCES[1]])
    assert tokenizer(SENTENCES[1])["input_ids"] == ids.tolist()


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back(folder, text):
    engine = load_engine(find_tokenizer(str(folder)))
    assert engine.decode(engine.encode([text])[0]) == text


def test_special_tokens(tmp_path):
    save_tokenizer(train_bpe(SENTENCES, vocab_size=300, special_tokens=["<end>", "<a>"]), tmp_path)
    engine = load_engine(find_tokenizer(str(tmp_path)))
    assert (engine.special_tokens, engine.eos_id, engine.vocab_size) == ({"<end>": 0, "<a>": 1}, 0, 300)


def test_vocabulary_over_16_bits_has_wider_ids(tmp_path):
    save_tokenizer(train_bpe(SENTENCES, special_tokens=[f"<{n}>" for n in range(65_400)], vocab_size=65_700), tmp_path)
    files = find_tokenizer(str(tmp_path))
    assert load_engine(files).vocab_size > 65_536
    assert check_tokenizer(files, ["a text"]).id_type == "uint32"


@pytest.mark.parametrize(
    ("vocab_size", "specials"), [(256, ["<a>"]), (300, []), (300, [""]), (300, ["<a>", "<a>"]), (257, ["<a>", "<b>"])]
)
def test_refused(vocab_size, specials):
    with pytest.raises(UsageError):
        train_bpe(SENTENCES, vocab_size=vocab_size, special_tokens=specials)


def test_nothing_is_overwritten_unasked(folder, tmp_path):
    before = (folder / "tokenizer.json").read_bytes()
    other = train_bpe(SENTENCES, vocab_size=260)
    with pytest.raises(UsageError, match="exists already"):
        save_tokenizer(other, folder)
    assert (folder / "tokenizer.json").read_bytes() == before
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        save_tokenizer(other, tmp_path / "file", overwrite=True)


@pytest.mark.parametrize(
    ("specials", "end", "begin"),
    [
        (["<|endoftext|>"], "<|endoftext|>", "<|endoftext|>"),
        (["<|im_start|>", "<|im_end|>"], "<|im_end|>", None),
        (["<|im_start|>", "<|im_end|>", "<|endoftext|>"], "<|endoftext|>", "<|endoftext|>"),
        (["<|im_end|>", "<|im_start|>", "<|endoftext|>"], "<|im_end|>", None),
        (["<pad>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>"], "<eos>", "<bos>"),
        (["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], "<|end_of_text|>", "<|begin_of_text|>"),
        (["<|mine|>", "<|image|>"], "<|mine|>", None),
    ],
)
def test_tokens_begin_and_end_documents_as_their_names_say(specials, end, begin):
    config = json.loads(train_bpe(["one fish"], vocab_size=270, special_tokens=specials)["tokenizer_config.json"])
    assert (config["eos_token"], config.get("bos_token")) == (end, begin)


def test_a_token_that_begins_turns_does_not_end_documents():
    with pytest.raises(UsageError, match="none of the special tokens ends them"):
        train_bpe(["one fish"], vocab_size=270, special_tokens=["<|im_start|>", "<|image|>"])
