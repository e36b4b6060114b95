"""Training: the same texts give the same tokenizer, which transformers can load and which gives every text back."""

import pytest
from gristmill_testing.scripts import run
from gristmill_testing.small_tokenizers import SENTENCES
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.text.tokenizers import find_tokenizer, load_engine, save_tokenizer, train_bpe
from gristmill.text.tokenizers.check_tokenizer import check_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained")
    save_tokenizer(train_bpe(iter(SENTENCES * 5), vocab_size=320), path)
    return path


def test_same_texts_same_bytes_in_any_process(folder):
    code = (
        "import sys; from gristmill_testing.small_tokenizers import SENTENCES;"
        "from gristmill.text.tokenizers import train_bpe;"
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


def test_check(folder):
    report = check_tokenizer(find_tokenizer(str(folder)), list(SENTENCES))
    assert report.num_bytes == sum(len(text.encode()) for text in SENTENCES)
    assert report.bytes_per_token == round(report.num_bytes / report.num_tokens, 3)
    assert report.num_round_trips == report.num_adversarial
    assert (report.engine, set(report.engines)) == ("fastokens", {"fastokens", "tokenizers"})
    assert report.engines["fastokens"].megabytes_per_second > 0
