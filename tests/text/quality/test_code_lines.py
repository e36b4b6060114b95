"""What is code and what is prose, on lines that anybody can judge and on real files."""

import sysconfig
from pathlib import Path

import pyarrow as pa
import pytest
from gristmill_testing.shared_data import corpus_records

from gristmill.text.quality.counting import SCORES, RequiredPasses, TextCounter

# ruff: noqa: RUF001
SCORE = SCORES["code_ratio"]
COUNTING = TextCounter(RequiredPasses.of([SCORE]))

CODE = {
    "Python": "import os\n\n\ndef size(path):\n    total = os.stat(path).st_size\n    return total\n",
    "Rust": "fn main() {\n    let x: u32 = 5;\n    println!(\"{}\", x);\n}\n",
    "C": "#include <stdio.h>\n\nint main(void) {\n  printf(\"hi\\n\");\n  return 0;\n}\n",
    "Go": "package main\n\nfunc add(a int, b int) int {\n\treturn a + b\n}\n",
    "Java": "public class Point {\n    private final int x;\n    public int getX() { return x; }\n}\n",
    "JavaScript": "const sum = (a, b) => a + b;\nmodule.exports = { sum };\n",
    "Ruby": "class Dog\n  def initialize(name)\n    @name = name\n  end\nend\n",
    "Shell": "#!/bin/sh\nfor f in *.txt; do\n  echo \"$f\"\ndone\n",
    "SQL in a string": 'query = """\nselect name from people\nwhere age is known\n"""\nrows = run(query)\n',
    "Lua": "local M = {}\nfunction M.add(a, b)\n  return a + b\nend\nreturn M\n",
    "SQL": "SELECT name\nFROM people\nWHERE id > 3;\nINSERT INTO people VALUES (4);\n",
    "Common Lisp": "(defun mean (numbers)\n  (let ((total 0))\n    (dolist (n numbers) (incf total n))))\n",
    "assembly": "section .text\nadd_one:\n        mov     rax, [rdi]\n        inc     rax\n        ret\n",
    "Fortran": "      SUBROUTINE SWAP(A, B)\n      REAL A, B, T\n! Exchange them\n      T = A\n      END\n",
    "COBOL": "       MOVE WS-TOTAL TO WS-LAST\n       PERFORM READ-NEXT\n       DISPLAY WS-TOTAL\n",
}  # fmt: skip
PROSE = {
    "English": "It was the best of times, it was the worst of times.\nIf you can keep your head, that is good.\n",
    "hard wrapped": "for many a year the people of the town\nhad gone without, and it was\nwith relief that they saw.",
    "a Chinese poem": "床前明月光，\n疑是地上霜。\n舉頭望明月；\n低頭思故鄉。",
    "Japanese": "今日はいい天気ですね。散歩に行きましょう。",
    "a list": "* Apples and pears\n* Bread\n* Milk; and honey",
    "Markdown with links": "# Title\n\nSee [the page](https://example.org/a_b?c=d) for `foo_bar()` and more.",
    "arithmetic": "She has 5 + 3 = 8 apples.\nSo the answer is 8.",
    "dialogue": '"Where are you going?" she asked.\n"Home," he said.',
}


def code_ratio(*texts):
    return SCORE.value(COUNTING.count(pa.array(texts, pa.large_string()))).tolist()


@pytest.mark.parametrize("text", CODE.values(), ids=CODE)
def test_code(text):
    assert code_ratio(text) == [1.0]


@pytest.mark.parametrize("text", PROSE.values(), ids=PROSE)
def test_prose(text):
    assert code_ratio(text) == [0.0]


def test_comments_take_after_the_code_around_them():
    assert code_ratio("# Copyright of somebody, in plain words\n\nimport os\n# A comment on it\nx = f(1)\n") == [1.0]
    assert code_ratio("# A title\n\nThis is a sentence of prose, and no more.\n") == [0.0]


def test_what_a_closed_fence_encloses_is_code():
    fence = "```\nplain words in a fence\n```"
    prose = "This is a sentence of prose."
    fenced, total = (len(text.replace("\n", "")) for text in (fence, 2 * prose + fence))
    assert code_ratio(f"{prose}\n{fence}\n{prose}") == [fenced / total]
    assert code_ratio(f"{prose}\n```\n{prose}\n{prose}") == [0.0]  # never closed


def test_files_of_the_standard_library():
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [text for text in (file.read_text(errors="replace") for file in files) if len(text) > 1000]
    values = code_ratio(*texts)
    assert sum(value >= 0.5 for value in values) > 0.95 * len(values)


def test_poems_and_rust():
    poems = [record["text"] for record in corpus_records("chinese_poetry", 1000)]
    assert sum(value > 0.1 for value in code_ratio(*poems)) == 0
    files = [record["text"] for record in corpus_records("code_rust", 2000) if record["id"].endswith(".rs")]
    values = code_ratio(*files)
    assert sum(value >= 0.5 for value in values) > 0.98 * len(values)
