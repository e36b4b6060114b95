# ruff: noqa: RUF001  (letters that look alike are the point)
"""Texts on which tokenizers are known to disagree. All are small, except one: a mebibyte of spaces."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_RUN = 4096
_MAX_SPECIALS = 24
"""How many special tokens are tried; a tokenizer may have hundreds that differ only in a number."""

_TEXTS = (
    "",
    " ",
    "\n",
    "\r\n\r\n \t\n  x\r",
    "a",
    "The quick brown fox can't, won't and shouldn'T've jumped; WE'LL SEE. I'D'VE 's 'S ſ’s",
    "3.14159 1,000,000 0x7f٣٤٥ ⅷ ² 1٢3 10000000000000000000000",
    "def f(x):\n\treturn {\n        'a': [x**2, -x],\n    }  # ok\n\n\n\nif __name__ == '__main__':\n    f(1)\n",
    "https://example.org/a?b=c&d=%20#e user@example.org C:\\path\\to __init__ --flag=value ... ///// <p>&nbsp;</p>",
    # letters with marks: composed, decomposed, in unusual order, without a base, many on one base
    "é e\u0301 ệ e\u0323\u0302 e\u0302\u0323 \u0301a ñ n\u0303 Å A\u030a \u212b Z\u0351\u036b\u0343\u036a\u0302",
    "\u0f71\u0f72 A\u0300\u0315\u0300\u05ae\u0062",
    "\u0344 \u0340\u0341 \u0958 \u2adc \ufb1d\ufb2a \u1e9b\u0323 \uac00\u11a8 \u1100\u1161\u11a8",
    "中文字符。日本語のテキスト、ひらがなカタカナー。한국어 텍스트",
    "\u1112\u1161\u11ab ﾊﾝｶｸ ｆｕｌｌ　ｗｉｄｔｈ 㐀𠀀𪚥 々〆",
    "العربية مرحبا\u064b\u064c بالعالم שָׁלוֹם हिन्दी क्षत्रिय தமிழ் ไทย ສະບາຍດີ မြန်မာ ខ្មែរ Ελληνικά Русский ꙮ ქართული",
    "😀👍🏽👩‍👩‍👧‍👦🏳️‍🌈🇩🇪🇯🇵🇩 #️⃣ ❤️ ❤ 👨\u200d \u200d👩 🧑🏿‍🚀\ufe0f\ufe0f",
    "\u200b\u200c\u200d\u2060\ufeff x\u00adx \u202eabc\u202c \u2028\u2029\u0085",
    "x \u00a0\u1680\u2003\u3000\u205f \v\f\x1c\x1f",
    "\x00\x01\x7f\x80\x9f \ufffd \ufffe\uffff \ufdd0 \U0010ffff \ue000 \U000e0041\U000f0000",
    "ﬁ ﬃ ĳ ǆ ß ẞ İ ı i̇ ς Σ ſ K ℵ ™ ½ ㎏ ㍿ Ⅻ ⓐ 𝐀𝒜𝔸 ｱ ヷ",
    " ".join(chr(code) for code in range(0xA0, 0x250)),
    "".join(chr(code) for code in range(0x1F600, 0x1F650)),
    "".join(chr(code) for code in range(0x300, 0x370)),
    "".join(chr(code) for code in range(0xAC00, 0xB000, 7)),
    "a" * _RUN,
    "\n" * _RUN,
    "\t" * _RUN,
    " \n" * _RUN,
    "7" * _RUN,
    "中" * _RUN,
    "=" * _RUN,
    "ab" * _RUN,
    "e" + "\u0301" * _RUN,
    "👨\u200d" * (_RUN // 4),
    "".join(f"{' ' * count}x" for count in range(200)),
    "x" + " " * 1000 + "\n" + " " * 1000 + "y",
    " " * (1 << 20),
)


def make_adversarial_texts(special_tokens: Iterable[str]) -> list[str]:
    """List the texts, and more with these special tokens: alone, doubled, glued to words, cut short, in capitals."""
    texts = list(_TEXTS)
    chosen = sorted(special_tokens, key=lambda token: (_describe_shape(token), token))
    used_shapes: set[str] = set()
    for token in chosen:
        shape = _describe_shape(token)
        if shape in used_shapes or len(used_shapes) == _MAX_SPECIALS:
            continue
        used_shapes.add(shape)
        texts += [
            token,
            f"{token}{token}",
            f"word{token}word {token} word\n{token}\n",
            f"{token[:-1]} {token[1:]} {token.upper()} {token.lower()} {token}{token[:2]} é{token}\u0301",
        ]
    texts.append(" ".join(chosen[:_MAX_SPECIALS]))
    return texts


def _describe_shape(token: str) -> str:
    """Find the shape that `<SPECIAL_14>` and `<SPECIAL_15>` have in common."""
    return re.sub(r"\d+", "0", token)
