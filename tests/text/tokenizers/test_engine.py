"""Both engines give the reference's ids: on real tokenizers, real texts, generated Unicode, long documents."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.open_texts import OPEN_CORPORA
from gristmill_testing.shared_data import CORPORA, TOKENIZERS, corpus_texts, tokenizer_folder
from gristmill_testing.small_tokenizers import SENTENCES, changed, trained
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from gristmill.core.errors import GristmillError, UsageError
from gristmill.text.tokenizers import choose as adversarial
from gristmill.text.tokenizers import engine as reference_engine
from gristmill.text.tokenizers.byte_lengths import load_decoder, split_by_tokens
from gristmill.text.tokenizers.choose import compare_engines
from gristmill.text.tokenizers.engine import clear_engine_cache, load_engine
from gristmill.text.tokenizers.fast_engine import join_cuts
from gristmill.text.tokenizers.files import find_tokenizer

TRAINED = "trained"
FAST = [TRAINED, *(name for name in TOKENIZERS if name not in ("made_word_piece", "bert_base_cased"))]
_loaded = {}

# Everything that can be in an Arrow string: no surrogates.
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
# Characters at which tokenizers differ: marks, joiners, spaces, digits, brackets of special tokens.
TRICKY = st.text(
    st.sampled_from("aeE'sT1٣²  \t\n\r\u00a0\u3000\u200d\u0301\u0323éÅ中ひ한👩🏽🇩ﬁ<|>_/[]endoftx"), max_size=60
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Engines by tokenizer, engine and policy; each is loaded once."""

    def load(name, engine="tokenizers", *, specials_as_text=True):
        key = name, engine, specials_as_text
        if key not in _loaded:
            files = (
                trained(tmp_path_factory.mktemp("tokenizer"))
                if name == TRAINED
                else find_tokenizer(str(tokenizer_folder(name)))
            )
            _loaded[key] = load_engine(files, engine, specials_as_text=specials_as_text)
        return _loaded[key]

    yield load
    _loaded.clear()


def split(ids, offsets):
    return [ids[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("specials_as_text", [True, False], ids=["text", "token"])
@settings(max_examples=25, deadline=None)
@given(texts=st.lists(st.one_of(UNICODE, TRICKY), max_size=6))
def test_fast_engine_equals_reference_on_any_unicode(engines, name, specials_as_text, texts):
    fast = engines(name, "fastokens", specials_as_text=specials_as_text)
    assert compare_engines(fast, engines(name, specials_as_text=specials_as_text), texts) is None


@pytest.mark.parametrize("name", FAST)
def test_fast_engine_equals_reference_on_real_texts(engines, name):
    corpora = OPEN_CORPORA if name == TRAINED or name.startswith("made_") else CORPORA
    texts = [text[:4000] for corpus in corpora for text in corpus_texts(corpus, 12, first=30)]
    assert compare_engines(engines(name, "fastokens"), engines(name), texts) is None


@pytest.mark.parametrize("individual", [True, False])
@settings(max_examples=300, deadline=None)
@given(text=st.one_of(UNICODE, TRICKY))
def test_a_split_at_digits_and_one_into_words_are_joined_to_one(individual, text):
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    two = Tokenizer(models.BPE())
    two.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=individual), words])
    joined = join_cuts(two.to_str().encode())
    assert b"Digits" not in joined
    one = Tokenizer.from_str(joined.decode())
    assert one.pre_tokenizer.pre_tokenize_str(text) == two.pre_tokenizer.pre_tokenize_str(text)


@pytest.mark.parametrize("name", [TRAINED, *TOKENIZERS])
def test_the_decoder_equals_the_reference(engines, name):
    """On all ids, and on any sequence of them: parts of characters, unknown ids, added tokens."""
    reference = engines(name)
    decoder = load_decoder(reference._files)
    sizes = range(reference.vocab_size)
    assert decoder.decode(sizes) == reference.decode(sizes)

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.one_of(st.integers(0, reference.vocab_size + 3), st.integers(0, 300)), max_size=20))
    def compare(ids):
        assert decoder.decode(ids) == reference.decode(ids)

    compare()


@pytest.mark.parametrize("name", [TRAINED, "made_gemma_like"])
def test_texts_of_tokens_joined_are_the_whole_text(engines, name):
    """Also where a token is a part of a character, or begins with a space."""
    engine = engines(name)
    text = "wheat and rye, 前门大街 \U0001f33e über"
    ids = engine.encode([text])[0].tolist()
    texts = split_by_tokens(engine.decode, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == engine.decode(ids) == text


def test_only_byte_level_tokenizers_are_decoded_without_an_engine(engines):
    kinds = {name: type(load_decoder(engines(name)._files)).__name__ for name in (TRAINED, "made_gemma_like")}
    assert kinds == {TRAINED: "_ByteLevelDecoder", "made_gemma_like": "ReferenceEngine"}


def test_added_tokens_with_spaces_are_decoded_as_they_are(tmp_path):
    def add(data):
        ids = [*data["model"]["vocab"].values(), *(token["id"] for token in data["added_tokens"])]
        token = {"id": max(ids) + 1, "content": "<a b ü>", "special": False}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        data["added_tokens"].append({**token, **flags})

    files = changed(tmp_path, add)
    ids = load_engine(files, specials_as_text=False).encode(["wheat <a b ü> über"])[0]
    assert load_decoder(files).decode(ids) == load_engine(files).decode(ids) == "wheat <a b ü> über"


@pytest.mark.parametrize("name", [TRAINED, *TOKENIZERS])
def test_reference_equals_transformers(engines, name, tmp_path):
    """An independent way to the same ids: transformers' own loading of the same file."""
    transformers = pytest.importorskip("transformers")
    path = str(trained(tmp_path).path if name == TRAINED else tokenizer_folder(name) / "tokenizer.json")
    oracle = transformers.PreTrainedTokenizerFast(tokenizer_file=path)
    reference = engines(name)
    texts = [*SENTENCES, *adversarial.make_adversarial_texts(reference.special_tokens)[:-1]]
    texts = [text for text in texts if len(text) < 10_000]
    for as_text in (True, False):
        found = split(*engines(name, specials_as_text=as_text).encode(texts))
        expected = oracle(texts, add_special_tokens=False, split_special_tokens=as_text)["input_ids"]
        assert found == expected


@pytest.mark.parametrize("engine", ["tokenizers", "fastokens"])
def test_shape_of_what_comes_out(engines, engine):
    loaded = engines(TRAINED, engine)
    texts = ["one", "", "two words"]
    ids, offsets = loaded.encode(texts)
    assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
    assert offsets[0] == 0
    assert offsets[1] == offsets[2]
    assert offsets[-1] == len(ids)
    assert [loaded.decode(part) for part in split(ids, offsets)] == texts
    for other in (pa.array(texts), pa.array(texts, pa.large_string()), pa.array(["x", *texts])[1:]):
        assert split(*loaded.encode(other)) == split(ids, offsets)
    ids, offsets = loaded.encode([])
    assert len(ids) == 0
    assert offsets.tolist() == [0]


@pytest.mark.parametrize("engine", ["tokenizers", "fastokens"])
def test_specials_in_text(engines, engine):
    text = "a<|endoftext|>b"
    as_text = engines(TRAINED, engine)
    assert 0 not in as_text.encode([text])[0]
    assert as_text.decode(as_text.encode([text])[0]) == text
    assert 0 in engines(TRAINED, engine, specials_as_text=False).encode([text])[0]


@pytest.mark.parametrize("engine", ["tokenizers", "fastokens"])
def test_settings_for_models_do_not_cut_or_pad(tmp_path, engine):
    """Many published files say: cut at 512 tokens, begin with [CLS]. A corpus must not be cut."""

    def change(data):
        data["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        data["padding"] = {
            "strategy": {"Fixed": 8},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": "<|pad|>",
        }
        data["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|pad|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|pad|>": {"id": "<|pad|>", "ids": [1], "tokens": ["<|pad|>"]}},
        }

    plain = load_engine(trained(tmp_path / "plain"), engine)
    cut = load_engine(changed(tmp_path / "cut", change), engine)
    for text in ("x", SENTENCES[0]):
        assert cut.encode([text])[0].tolist() == plain.encode([text])[0].tolist()


@pytest.mark.parametrize("name", [TRAINED, *TOKENIZERS])
@settings(max_examples=15, deadline=None)
@given(parts=st.lists(st.one_of(TRICKY, st.sampled_from([*SENTENCES, "\n\n", "   ", " x"])), max_size=80))
def test_pieces_equal_the_whole(engines, name, parts):
    reference = engines(name)
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_engine, "PIECE_CHARS", 256)
        patch.setattr(reference_engine, "_CONTEXT_CHARS", 128)
        found, _ = reference.encode([text])
    assert found.tolist() == reference.encode([text])[0].tolist()


def test_long_texts_are_cut_for_the_reference(engines):
    text = (SENTENCES[0] + "\n") * 8000
    assert len(text) > 3 * reference_engine.PIECE_CHARS
    reference = engines(TRAINED)
    assert len(reference_engine.encode_in_pieces(reference._encode_one, text)) > 3
    assert compare_engines(engines(TRAINED, "fastokens"), reference, [text]) is None


def test_a_text_without_borders_is_encoded_whole(engines):
    text = "ab" * reference_engine.PIECE_CHARS
    reference = engines(TRAINED)
    assert len(reference_engine.encode_in_pieces(reference._encode_one, text)) == 1


def test_mismatch_says_where(engines):
    class Wrong(type(engines(TRAINED))):
        def __init__(self):
            pass

        def encode(self, texts):
            ids, offsets = engines(TRAINED).encode(texts)
            ids[-2] = 7
            return ids, offsets

    mismatch = compare_engines(Wrong(), engines(TRAINED), ["fine", SENTENCES[0]])
    assert mismatch.index == 1
    assert mismatch.ids[:-2] == mismatch.expected[:-2]
    assert mismatch.ids[-2] == 7
    assert "stone" in mismatch.text


def test_files_that_change_after_the_plan_are_refused(tmp_path):
    files = trained(tmp_path)
    clear_engine_cache()  # engines are kept by their content, which other tests train, too
    (tmp_path / "tokenizer.json").write_text((tmp_path / "tokenizer.json").read_text() + "\n")
    for engine in ("tokenizers", "fastokens"):
        with pytest.raises(GristmillError, match="has changed"):
            load_engine(files, engine)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}", b"[1, 2]", b"\xff\xfe", b'{"model": {"vocab": {}}}', b"PK\x03\x04"]
)
def test_what_is_no_tokenizer(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        load_engine(find_tokenizer(str(path)), "tokenizers")


def test_truncated_file(tmp_path):
    trained(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UsageError, match="cannot be read as a tokenizer"):
        load_engine(find_tokenizer(str(path)), "tokenizers")


def test_engine_names():
    with pytest.raises(UsageError, match="fastokens"):
        load_engine(None, "fasttokens")


def test_nothing_is_imported_before_it_is_needed():
    code = (
        "import sys, gristmill.steps.tokenize; print({'tokenizers', 'fastokens', 'huggingface_hub'} & set(sys.modules))"
    )
    from gristmill_testing.scripts import run

    assert run("-c", code).stdout.strip() == "set()"
