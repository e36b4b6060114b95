"""Special tokens in texts, counted and found."""

import re
import shutil
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.records import Texts
from gristmill.text.tokenizers.files import find_tokenizer
from gristmill.text.tokenizers.special_tokens import SpecialLiterals, SpecialTokenFinder, compile_tokens

PIECES = ["<s>", "</s>", "<|a|>", "<|a|>b", "<", "s", "|", "x", "é", "\n", " ", "<1", "2", ">", "٣"]


SEARCH = """
import sys
from gristmill.text.tokenizers.special_tokens import compile_tokens
tokens = [f"<unused{number}>" for number in range(6000)]
pattern = compile_tokens(tokens)
text = "".join(f"a{token}<p>{token[:-1]}" for token in tokens * 8)[: int(sys.argv[1])]
assert len(pattern.findall(text)) >= len(text) // 40
"""


def scan(tokens, text):
    """Leftmost, then longest: as a tokenizer takes them."""
    found, place = [], 0
    while place < len(text):
        token = max((token for token in tokens if text.startswith(token, place)), key=len, default="")
        found += [token] if token else []
        place += len(token) or 1
    return found


def counted(tokens, text):
    return len(scan(tokens, text))


@pytest.mark.parametrize(
    "tokens",
    [
        ["<s>", "</s>", "<|a|>", "<|a|>b", "<| é|>"],
        ["<1>", "<12>", "<1>2", "2", "<s>"],
        ["<1>"],
        ["<s>", "x", "é", "2", "s", "|a"],
    ],
)
@settings(deadline=None)
@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=6))
def test_count_is_that_of_a_plain_scan(tokens, texts):
    found = SpecialLiterals(tokens).count(pa.array(texts, pa.large_string()))
    assert found.tolist() == [counted(tokens, text) for text in texts]
    assert SpecialLiterals(tokens).count_in(Texts(texts)).tolist() == found.tolist()
    assert SpecialLiterals(tokens).count_in(Texts(pa.array(texts, pa.large_string()))).tolist() == found.tolist()


@pytest.mark.parametrize(
    "token", ["[I]", "<|a b|>", "a.*", "\\Q", "<|é中|>", "\t", "{1}", "^$", "<\n>", "\uff08\uff09"]
)
def test_no_character_is_taken_for_a_pattern(token):
    texts = pa.array([f"x{token}{token}y", "plain", token[:-1]], pa.large_string())
    assert SpecialLiterals([token]).count(texts).tolist() == [2, 0, 0]


def test_many_special_tokens():
    tokens = [f"<|reserved_special_token_{number}|>" for number in range(5000)]
    texts = pa.array([tokens[0] + tokens[4999], "none"], pa.large_string())
    assert SpecialLiterals(tokens).count(texts).tolist() == [2, 0]


def test_no_special_tokens():
    assert SpecialLiterals([]).count_in(Texts(["a", ""])).tolist() == [0, 0]
    assert SpecialLiterals([]).count(pa.array(["a", ""], pa.large_string())).tolist() == [0, 0]
    assert SpecialLiterals([""]).count(pa.array(["a", ""], pa.large_string())).tolist() == [0, 0]


@settings(deadline=None)
@given(
    tokens=st.lists(st.lists(st.sampled_from("<>/|ab .*é"), max_size=5).map("".join), max_size=12),
    text=st.lists(st.sampled_from("<>/|ab .*é"), max_size=60).map("".join),
)
def test_found_tokens_are_those_of_a_plain_scan(tokens, text):
    pattern = compile_tokens(tokens)
    assert (pattern.findall(text) if pattern is not None else []) == scan([token for token in tokens if token], text)


def test_tokens_that_begin_each_other_without_end():
    tokens = ["-" * length for length in range(1, 400)]
    assert compile_tokens(tokens).findall("-" * 1000) == scan(tokens, "-" * 1000)


@settings(deadline=None)
@given(text=st.lists(st.sampled_from(["<l>", "<r>", "<n>", " ", "\n", "x", "<"]), max_size=14).map("".join))
def test_tokens_strip_the_space_that_the_tokenizer_strips(tmp_path_factory, text):
    from tokenizers import AddedToken, Tokenizer, models

    tokenizer = Tokenizer(models.BPE({"<unk>": 0}, [], unk_token="<unk>"))
    for content, strips in {"<l>": {"lstrip": True}, "<r>": {"rstrip": True}, "<n>": {}}.items():
        tokenizer.add_special_tokens([AddedToken(content, **strips)])
    folder = tmp_path_factory.mktemp("strips")
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    encoding = tokenizer.encode(text)
    names = [tokenizer.id_to_token(number) for number in encoding.ids]
    spans = zip(encoding.offsets, names, strict=True)
    expected = [(*span, name) for span, name in spans if name != "<unk>"]
    assert list(SpecialTokenFinder(find_tokenizer(str(folder))).find(text)) == expected


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind counts the instructions")
def test_a_search_for_thousands_of_tokens_takes_time_by_the_length_of_the_text(tmp_path):
    nothing, half, whole = (count_instructions(tmp_path, length) for length in (0, 500_000, 1_000_000))
    assert whole - nothing < 2.2 * (half - nothing)
    assert (whole - nothing) / 1_000_000 < 1000  # for each character


def count_instructions(folder, length):
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", sys.executable, "-c", SEARCH]
    finished = subprocess.run([*command, str(length)], capture_output=True, text=True, check=True)
    return int(re.search(r"Collected : (\d+)", finished.stderr)[1])
