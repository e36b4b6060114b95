"""`tokenize`: what it makes of documents, what it counts, and what stops it."""

import pickle
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from gristmill_testing.small_tokenizers import SENTENCES, changed, trained

from gristmill.core.errors import GristmillError, ParityError, UsageError
from gristmill.core.records import INPUT_IDS, ORIGIN, SPLIT, documents
from gristmill.pipeline.planning import fingerprint
from gristmill.steps import Tokenize
from gristmill.text.tokenizers import fast_engine
from gristmill.text.tokenizers.engine import clear_engine_cache

EOS = "<|endoftext|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizers")
    trained(path / "mine")
    trained(path / "two", eos_token=EOS, bos_token="<|pad|>")
    return path


@pytest.fixture
def step(folder):
    """A resolved step; the engine is fast unless said otherwise."""

    def make(tokenizer="mine", **parameters):
        return Tokenize(tokenizer=tokenizer, **parameters).resolve(str(folder))

    return make


def ids_of(applied):
    return applied.batch.column(INPUT_IDS).to_pylist()


def test_texts_on_which_the_fast_engine_fails_are_counted(step, monkeypatch):
    texts = [*SENTENCES, "", "x"]
    kernel = step().load()
    expected = ids_of(kernel.apply(documents(texts), 0))
    inner = kernel._engine._tokenizer

    def encode_batch_flat(batch, **options):
        if SENTENCES[1] in batch:
            raise ValueError("out of stack")
        return inner.encode_batch_flat(batch, **options)

    failing = type("Failing", (), {"encode_batch_flat": staticmethod(encode_batch_flat)})
    monkeypatch.setattr(kernel._engine, "_tokenizer", failing())
    for slices in ([slice(0, None)], [slice(0, 2), slice(2, None)]):
        applied = [kernel.apply(documents(texts[part]), 0) for part in slices]
        assert [ids for part in applied for ids in ids_of(part)] == expected
        assert sum(part.counters.get("encoded_by_reference", 0) for part in applied) == 1


def test_only_origin_and_split_stay(step):
    batch = documents(["a", "b"], url=["x", "y"]).append_column(SPLIT, pa.array(["train", "test"]))
    made = step()
    applied = made.apply(batch, 0)
    assert applied.batch.column_names == [ORIGIN, SPLIT, INPUT_IDS]
    assert applied.batch.schema.equals(made.output_schema(batch.schema))
    assert applied.batch.schema.field(INPUT_IDS).type == pa.list_(pa.uint16())
    applied.batch.validate(full=True)


def test_it_needs_the_text(step):
    with pytest.raises(UsageError, match="text"):
        step().output_schema(documents(["a"]).drop_columns(["text"]).schema)


def test_another_token_ends_or_begins_documents(step):
    named = step(end_token="<|pad|>", begin_token=EOS)
    assert [[*ids[:1], *ids[-1:]] for ids in ids_of(named.apply(documents(["one", "two words"]), 0))] == [[0, 1]] * 2
    assert (named.make_snapshot().identity.eos_id, named.make_snapshot().identity.bos_id) == (1, 0)
    assert "end with <|pad|> (1)" in named.notes()[0]
    assert step(end_token=EOS) == step()
    with pytest.raises(UsageError, match=r"end_token must be one of .*, not '<.pda.>'"):
        step(end_token="<|pda|>")
    with pytest.raises(UsageError, match="add_eos: false"):
        Tokenize(tokenizer="mine", end_token=EOS, add_eos=False)


def test_no_documents(step):
    made = step()
    for batch in (documents([]), documents(["a"]).slice(0, 0)):
        applied = made.load().apply(batch, 0)
        assert applied.batch.num_rows == 0
        assert applied.counters["tokens"] == 0


@pytest.mark.parametrize("engine", ["auto", "tokenizers"])
def test_special_tokens_in_text(step, engine):
    texts = [f"one{EOS}two<|pad|>", "plain", f"{EOS[:-1]}"]
    results = {}
    for policy in ("text", "token", "reject"):
        applied = step(special_tokens_in_text=policy, engine=engine).apply(documents(texts), 0)
        results[policy] = ids_of(applied)
        assert applied.counters["special_literals"] == 2
        assert applied.dropped == ({"special_token": 1} if policy == "reject" else {})
    assert all(ids.count(0) == 1 and 1 not in ids for ids in results["text"])
    assert results["token"][0].count(0) == 2
    assert 1 in results["token"][0]
    assert results["reject"] == results["text"][1:] == results["token"][1:]


def test_travels_and_says_what_it_is(step):
    made = step().adapt_to_sample(documents(["one", "two"]))
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert ids_of(again.apply(documents(["one"]), 0)) == ids_of(made.apply(documents(["one"]), 0))
    notes = "\n".join(made.notes())
    assert "fastokens" in notes
    assert "2 of the records" in notes
    assert EOS in notes
    carried = made.make_snapshot()
    assert carried.identity.parity["records"] == 2
    assert Path(carried.files["tokenizer.json"].path).read_bytes() == made.files.read()
    assert made.name == "tokenize"


def test_fingerprint_is_of_content_not_of_place(step, folder, tmp_path):
    trained(tmp_path / "elsewhere")
    moved = Tokenize(tokenizer="elsewhere").resolve(str(tmp_path))
    assert fingerprint.describe_steps([moved]) == fingerprint.describe_steps([step()])
    for other in (step("two"), step(add_eos=False), step(special_tokens_in_text="reject"), step(engine="tokenizers")):
        assert fingerprint.describe_steps([other]) != fingerprint.describe_steps([step()])


def test_the_grouping_of_documents_does_not_matter(step):
    batch = documents([*SENTENCES, "", EOS, "x"])
    kernel = step().load()
    whole = kernel.apply(batch, 0)
    for cut in range(batch.num_rows):
        parts = [kernel.apply(part, 0) for part in (batch.slice(0, cut), batch.slice(cut))]
        assert pa.concat_batches([part.batch for part in parts]).equals(whole.batch)


def test_wide_vocabulary(tmp_path):
    def far_away(data):
        data["model"]["vocab"] |= {f"word {number}": 400 + number for number in range(69_600)}
        data["added_tokens"].append(dict(data["added_tokens"][0], id=70_000, content="<|far|>"))

    for name, change, kind in (("wide", far_away, pa.uint32()), ("narrow", lambda data: None, pa.uint16())):
        changed(tmp_path / name, change)
        made = Tokenize(tokenizer=name, special_tokens_in_text="token").resolve(str(tmp_path))
        applied = made.apply(documents(["a<|far|>"]), 0)
        assert applied.batch.schema.field(INPUT_IDS).type == pa.list_(kind)
        assert (70_000 in ids_of(applied)[0]) == (name == "wide")


def test_an_id_beyond_the_vocabulary_is_never_wrapped(step):
    made = msgspec.structs.replace(step(), vocab_size=10)
    with pytest.raises(GristmillError, match="vocabulary ends at 10"):
        made.apply(documents(["some text"]), 0)


def test_no_end_token_is_refused_in_the_plan(tmp_path):
    trained(tmp_path / "none", specials=("<x>",), eos_token=None, bos_token=None)
    for parameters in ({}, {"add_eos": False, "add_bos": True}):
        with pytest.raises(UsageError, match=r"add_[be]os") as caught:
            Tokenize(tokenizer="none", **parameters).resolve(str(tmp_path))
        assert "tokenizer_config.json" in caught.value.help
    assert Tokenize(tokenizer="none", add_eos=False).resolve(str(tmp_path)).eos_id is None


@pytest.mark.parametrize(
    "parameters",
    [{"tokenizer": ""}, {"tokenizer": "x", "engine": "quick"}, {"tokenizer": "x", "special_tokens_in_text": "drop"}],
)
def test_wrong_parameters(parameters):
    with pytest.raises(UsageError):
        Tokenize(**parameters)


class TestParity:
    """While running, the fast engine is watched."""

    @pytest.fixture
    def wrong(self, monkeypatch):
        """Makes the fast engine wrong for texts that hold a word, from now on."""
        right = fast_engine.FastEngine._encode

        def encode(self, texts):
            ids, offsets = right(self, texts)
            ids = ids.copy()
            for index, text in enumerate(texts):
                if "peculiar" in text:
                    ids[offsets[index + 1] - 1] = 3
            return ids, offsets

        return lambda: monkeypatch.setattr(fast_engine.FastEngine, "_encode", encode)

    def test_first_of_each_cell(self, step, wrong):
        kernel = step().load()
        kernel.begin_cell()
        kernel.apply(documents(["one", "two"]), 0)
        wrong()
        kernel.apply(documents(["a peculiar text"]), 0)
        kernel.begin_cell()
        with pytest.raises(ParityError) as caught:
            kernel.apply(documents(["a peculiar text"], first=17), 0)
        error = pickle.loads(pickle.dumps(caught.value))
        assert "position 17" in error.message
        assert "peculiar" in error.message
        assert "engine: tokenizers" in error.help
        assert error.context["position"] == 17

    def test_one_in_ten_thousand_by_origin(self, step):
        kernel = step().load()
        batch = documents(["x"] * 50_000)
        found = [kernel.apply(part, 5).counters["parity_checked"] for part in (batch[:20_000], batch[20_000:])]
        assert 0 < sum(found) < 20
        assert sum(found) == kernel.apply(batch, 5).counters["parity_checked"]

    def test_long_documents_are_not_checked(self, step):
        kernel = step().load()
        kernel.checked_bytes, kernel.checked_share = 10, 0.999999
        assert kernel.apply(documents(["a text of more than ten bytes"]), 0).counters["parity_checked"] == 0
        assert kernel.apply(documents(["a text of more than ten bytes", "x"]), 0).counters["parity_checked"] == 1

    def test_the_reference_is_loaded_once_and_only_if_needed(self, step):
        kernel = step().load()
        kernel.apply(documents(["x"]), 0)
        assert "_reference" not in vars(kernel)
        kernel.begin_cell()
        kernel.apply(documents(["x"]), 0)
        loaded = vars(kernel)["_reference"]
        kernel.begin_cell()
        kernel.apply(documents(["x"]), 0)
        assert vars(kernel)["_reference"] is loaded

    def test_reference_is_not_checked_against_itself(self, step):
        kernel = step(engine="tokenizers").load()
        kernel.begin_cell()
        assert kernel.apply(documents(["x"]), 0).counters["parity_checked"] == 0

    def test_a_sample_that_differs_settles_for_the_reference(self, step, wrong):
        auto, fixed = step(), step(engine="fastokens")
        clear_engine_cache()
        wrong()
        settled = auto.adapt_to_sample(documents(["a peculiar text"]))
        assert settled.engine == "tokenizers"
        assert "other ids" in "\n".join(settled.notes())
        kernel = settled.load()
        kernel.begin_cell()
        kernel.apply(documents(["a peculiar text"]), 0)
        with pytest.raises(UsageError, match="other ids"):
            fixed.adapt_to_sample(documents(["a peculiar text"]))


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_rules_that_multiply_a_text_are_refused_before_anything_is_loaded(tmp_path, part):
    def chain(data):
        rules = [
            {"type": "Replace", "pattern": {"String": chr(97 + number)}, "content": chr(98 + number) * 100}
            for number in range(9)
        ]
        data[part] = {"type": "Sequence", "normalizers" if part == "normalizer" else "decoders": rules}

    trained(tmp_path / "mine")
    changed(tmp_path / "mine", chain)
    with pytest.raises(UsageError, match="hostile"):
        Tokenize(tokenizer="mine").resolve(str(tmp_path))
