# ruff: noqa: RUF001
import unicodedata

from gristmill.text.quality.character_classes import (
    CAPITAL,
    DIGIT,
    LETTER,
    MARK,
    SPACE,
    SPACELESS,
    make_character_classes,
)


def test_the_table_is_python_s():
    classes = make_character_classes()
    for number, bits in enumerate(classes.tolist()):
        char = chr(number)
        category = unicodedata.category(char)
        assert bool(bits & SPACE) == char.isspace()
        assert bool(bits & LETTER) == char.isalpha()
        assert bool(bits & DIGIT) == (category == "Nd")
        assert (bits == MARK) == category.startswith("M")
        assert bool(bits & CAPITAL) == (category in ("Lu", "Lt"))
    beyond = map(chr, range(len(classes), 0x110000))
    assert not any(char.isalpha() or char.isspace() or char.isdecimal() for char in beyond)


def test_scripts_without_spaces():
    classes = make_character_classes()
    for char in "中文漢かカｶไทຂပសཀ𠀀々〆":
        assert classes[ord(char)] & SPACELESS, char
    for char in "aéЖ한글עعक，。":
        assert not classes[ord(char)] & SPACELESS, char
    assert classes[ord("ั")] == MARK
