"""The choice of an engine: proved, or the reference with the reason."""

import subprocess

import pytest
from gristmill_testing.shared_data import TOKENIZERS, tokenizer_folder
from gristmill_testing.small_tokenizers import changed, trained
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from gristmill.core.errors import UsageError
from gristmill.storage.remembered_proofs import use_plan_cache
from gristmill.text.tokenizers import choose, fast_engine
from gristmill.text.tokenizers.choose import choose_engine, compare_engines, confirm_on_sample, make_adversarial_texts
from gristmill.text.tokenizers.engine import EncodingError, clear_engine_cache, load_engine
from gristmill.text.tokenizers.files import TokenizerFiles, find_tokenizer, read_facts
from gristmill.text.tokenizers.special_tokens import PlainTextEngine

WORD_PIECE = ("made_word_piece", "bert_base_cased")  # fastokens does not know it


@pytest.fixture(autouse=True)
def _forget():
    choose._prove_fast_engine.cache_clear()
    clear_engine_cache()


@pytest.fixture
def wrong_from(monkeypatch):
    """A fast engine that is wrong for texts that hold a word."""

    def install(word):
        right = fast_engine.FastEngine._encode

        def encode(self, texts):
            ids, offsets = right(self, texts)
            ids = ids.copy()
            for index, text in enumerate(texts):
                if word in text:
                    ids[offsets[index + 1] - 1] = 3
            return ids, offsets

        monkeypatch.setattr(fast_engine.FastEngine, "_encode", encode)
        monkeypatch.setattr(choose, "_prove_in_limits", choose._prove)

    return install


def wordpiece(data):
    data["model"] = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {"[UNK]": 0, "a": 1, "##b": 2},
    }
    data["normalizer"] = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": False,
    }
    data["added_tokens"] = []


@pytest.mark.parametrize("specials_as_text", [True, False])
def test_auto_takes_the_fast_engine_where_it_is_equal(tmp_path, specials_as_text):
    choice = choose_engine(trained(tmp_path), "auto", specials_as_text=specials_as_text)
    assert choice.engine == "fastokens"
    assert choice.num_texts == len(make_adversarial_texts(["<|endoftext|>", "<|pad|>"]))


@pytest.mark.every_case
@pytest.mark.parametrize("name", TOKENIZERS)
def test_real_tokenizers(name):
    choice = choose_engine(find_tokenizer(str(tokenizer_folder(name))), "auto", specials_as_text=True)
    assert choice.engine == ("tokenizers" if name in WORD_PIECE else "fastokens"), choice.why


def test_a_model_that_the_fast_engine_cannot_load(tmp_path):
    files = changed(tmp_path, wordpiece)
    (tmp_path / "tokenizer_config.json").unlink()
    files = find_tokenizer(str(tmp_path))
    choice = choose_engine(files, "auto", specials_as_text=True)
    assert choice.engine == "tokenizers"
    assert "cannot load" in choice.why
    assert "fastokens" in choice.why
    with pytest.raises(UsageError, match="cannot load") as caught:
        choose_engine(files, "fastokens", specials_as_text=True)
    assert "auto" in caught.value.help


@pytest.mark.parametrize("word", ["<|endoftext|>", "日本語", "\u0301", "👩", " " * (1 << 20), "a" * 4096])
def test_any_difference_on_the_adversarial_set_means_the_reference(tmp_path, wrong_from, word):
    wrong_from(word)
    choice = choose_engine(trained(tmp_path), "auto", specials_as_text=True)
    assert choice.engine == "tokenizers"
    assert "other ids" in choice.why


def test_a_difference_on_the_users_records_means_the_reference(tmp_path, wrong_from):
    files = trained(tmp_path)
    choice = choose_engine(files, "auto", specials_as_text=True)
    assert confirm_on_sample(files, choice, ["plain", "fine"], specials_as_text=True).num_records == 2
    wrong_from("peculiar")
    fallen = confirm_on_sample(files, choice, ["plain", "a peculiar word"], specials_as_text=True)
    assert fallen.engine == "tokenizers"
    assert "peculiar" in fallen.why


def test_a_huge_record_does_not_hold_up_the_plan(tmp_path):
    files = trained(tmp_path)
    choice = choose_engine(files, "auto", specials_as_text=True)
    assert confirm_on_sample(files, choice, ["x " * (1 << 20), "short"], specials_as_text=True).num_records == 1


def test_the_reference_when_it_is_asked_for(tmp_path):
    assert choose_engine(trained(tmp_path), "tokenizers", specials_as_text=True).engine == "tokenizers"


def test_what_is_no_tokenizer_is_refused_by_every_choice(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    files = find_tokenizer(str(tmp_path))
    for engine in ("auto", "tokenizers", "fastokens"):
        with pytest.raises(UsageError, match="cannot be read as a tokenizer"):
            choose_engine(files, engine, specials_as_text=True)


def test_the_adversarial_set_holds_what_it_should():
    texts = make_adversarial_texts(f"<SPECIAL_{number}>" for number in range(1000))
    assert len(texts) < 60  # a thousand that differ in a number only are tried once
    joined = "".join(texts)
    for part in ("<SPECIAL_0>", "\u0301", "中", "\u200d", "\x00", "\U0010ffff", " " * (1 << 20), "a" * 4096):
        assert part in joined
    assert all(text.encode().decode() == text for text in texts)


def stack_hungry(folder):
    """The fast engine loads it, but its regular expressions run out of stack on a long run of spaces."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*[pre_tokenizers.Digits(individual_digits=True)] * 2, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(["one two 3"], trainer)
    made.save(str(folder / "tokenizer.json"))
    return find_tokenizer(str(folder))


def test_a_fast_engine_that_fails_on_one_text_is_chosen_and_says_so(tmp_path):
    files = stack_hungry(tmp_path)
    choice = choose_engine(files, "auto", specials_as_text=True)
    assert choice.engine == "fastokens"
    assert "1 texts that it cannot encode" in choice.why
    spaces = " " * (1 << 20)
    texts = ["one", spaces, "two 3", spaces, ""]
    engine = load_engine(files, "fastokens")
    num_before = engine.num_by_reference
    assert compare_engines(engine, load_engine(files), texts) is None
    assert engine.num_by_reference - num_before == 2


class Panic(BaseException):
    """Named as Rust's is."""


Panic.__name__ = "PanicException"


@pytest.mark.parametrize("error", [ValueError("stack"), Panic("locks")])
def test_failures_are_found_wherever_they_stand(tmp_path, monkeypatch, error):
    files = trained(tmp_path)
    engine = load_engine(files, "fastokens")

    class Failing:
        def __init__(self, inner):
            self.inner = inner

        def encode_batch_flat(self, texts, **options):
            if any("bad" in text for text in texts):
                raise error
            return self.inner.encode_batch_flat(texts, **options)

    inner = engine._tokenizer
    monkeypatch.setattr(engine, "_load", lambda: Failing(inner))
    monkeypatch.setattr(engine, "_tokenizer", Failing(inner))
    for texts in (["bad"], ["a", "bad", "b"], ["bad one", "x", "y", "bad two"], ["a"] * 9 + ["bad"], ["a", "b"], []):
        num_before = engine.num_by_reference
        assert compare_engines(engine, load_engine(files), texts) is None
        assert engine.num_by_reference - num_before == sum("bad" in text for text in texts)


def test_a_fast_engine_that_fails_on_most_texts_is_not_chosen(tmp_path, monkeypatch):
    files = trained(tmp_path)
    choice = choose_engine(files, "auto", specials_as_text=True)
    engine = load_engine(files, "fastokens")

    def fail(*_, **__):
        raise ValueError("never")

    monkeypatch.setattr(engine, "_tokenizer", type("Failing", (), {"encode_batch_flat": staticmethod(fail)})())
    fallen = confirm_on_sample(files, choice, ["one", "two"], specials_as_text=True)
    assert fallen.engine == "tokenizers"
    assert "cannot encode 2 of 2 texts" in fallen.why


def replace_everywhere(data):
    rule = {"type": "Replace", "pattern": {"Regex": ""}, "content": "ab"}
    data["normalizer"] = {"type": "Sequence", "normalizers": [rule] * 6}


@pytest.mark.parametrize("engine", ["auto", "tokenizers"])
@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [("_MAX_BYTES", 1 << 26, "ends the process|cannot be read|cannot encode"), ("_MAX_SECONDS", 1, "takes too long")],
)
def test_a_tokenizer_that_takes_all_memory_or_time_is_refused(tmp_path, monkeypatch, engine, limit, value, message):
    files = changed(tmp_path, replace_everywhere)
    monkeypatch.setattr(choose, limit, value)
    with pytest.raises(UsageError, match=message):
        choose_engine(files, engine, specials_as_text=True)


def test_a_proof_may_wait_for_its_turn_and_takes_longer_for_large_files(tmp_path, monkeypatch):
    awaited = []

    def run(*_, timeout, **__):
        awaited.append(timeout)
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess, "run", run)
    files = trained(tmp_path)
    for bytes_per_second in (1 << 30, 1):
        monkeypatch.setattr(choose, "_BYTES_PER_SECOND", bytes_per_second)
        with pytest.raises(UsageError, match="waits without end"):
            choose_engine(files, "auto", specials_as_text=True)
    small, large = awaited
    assert small >= 10 * choose._MAX_SECONDS  # of a core shared with nine others
    assert large - small >= len(files.read())


def test_a_panic_while_tokens_are_located_is_an_error_of_the_text(tmp_path):
    def split_at_backtracking(data):
        pattern = {"Regex": "(a+)+$"}
        data["pre_tokenizer"] = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}

    files = changed(tmp_path, split_at_backtracking)
    for engine in (load_engine(files), PlainTextEngine(files)):
        with pytest.raises(EncodingError, match="cannot encode"):
            engine.token_spans("a" * 40 + "b")
        assert len(engine.token_spans("one")[0])


def test_dropout_is_refused(tmp_path):
    made = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")], dropout=0.1))
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match=r"dropout of 0\.1"):
        read_facts(find_tokenizer(str(tmp_path)))


def test_a_proof_is_remembered_and_loads_no_engine(tmp_path, plan_cache, monkeypatch):
    files = trained(tmp_path)
    with use_plan_cache():
        first = choose_engine(files, "auto", specials_as_text=True)
        choose_engine(files, "tokenizers", specials_as_text=True)
        choose._prove_fast_engine.cache_clear()
        monkeypatch.setattr(choose, "load_engine", None)  # calling it would raise
        monkeypatch.setattr(TokenizerFiles, "read", None)
        assert choose_engine(files, "auto", specials_as_text=True) == first
        assert choose_engine(files, "fastokens", specials_as_text=True) == first
        assert choose_engine(files, "tokenizers", specials_as_text=True).engine == "tokenizers"
    assert sorted(path.name.rpartition("-")[0] for path in plan_cache.iterdir()) == [
        "tokenizer-ids",
        "tokenizer-proof",
    ]


def test_another_tokenizer_or_policy_is_proved_again(tmp_path, plan_cache, monkeypatch):
    with use_plan_cache():
        choose_engine(trained(tmp_path), "auto", specials_as_text=True)
        compared = []
        monkeypatch.setattr(choose, "_prove_in_limits", choose._prove)
        monkeypatch.setattr(choose, "_find_problem", lambda *args, **kwargs: compared.append(args) or "it is wrong")
        assert choose_engine(trained(tmp_path), "auto", specials_as_text=False).engine == "tokenizers"
        changed_files = changed(tmp_path, lambda data: data["added_tokens"].pop())
        assert choose_engine(changed_files, "auto", specials_as_text=True).engine == "tokenizers"
        assert len(compared) == 2


def test_a_file_that_was_refused_is_refused_again(tmp_path, plan_cache):
    def move_number(data):
        data["added_tokens"][-1]["id"] += 1000

    files = changed(tmp_path, move_number)
    for _ in range(2):
        choose._prove_fast_engine.cache_clear()
        for engine in ("auto", "tokenizers"):
            with use_plan_cache(), pytest.raises(UsageError, match="is loaded as"):
                choose_engine(files, engine, specials_as_text=True)
