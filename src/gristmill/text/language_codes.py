"""Language codes (ISO 639): which are valid in a recipe, and which one was probably meant."""

from __future__ import annotations

import re

from gristmill.core.errors import UsageError
from gristmill.core.names import find_nearest

_TAG = re.compile(r"[a-z]{2,3}([-_][a-z0-9]{2,8})*", re.IGNORECASE)
_TWO_LETTERS = 2

_NAMES = """
aa afar, ab abkhazian, ae avestan, af afrikaans, ak akan, am amharic, an aragonese, ar arabic, as assamese, av avaric,
ay aymara, az azerbaijani, ba bashkir, be belarusian, bg bulgarian, bh bihari, bi bislama, bm bambara, bn bengali,
bo tibetan, br breton, bs bosnian, ca catalan, ce chechen, ch chamorro, co corsican, cr cree, cs czech, cu slavonic,
cv chuvash, cy welsh, da danish, de german, dv divehi, dz dzongkha, ee ewe, el greek, en english, eo esperanto,
es spanish, et estonian, eu basque, fa persian, ff fulah, fi finnish, fj fijian, fo faroese, fr french, fy frisian,
ga irish, gd gaelic, gl galician, gn guarani, gu gujarati, gv manx, ha hausa, he hebrew, hi hindi, ho hirimotu,
hr croatian, ht haitian, hu hungarian, hy armenian, hz herero, ia interlingua, id indonesian, ie interlingue, ig igbo,
ii yi, ik inupiaq, io ido, is icelandic, it italian, iu inuktitut, ja japanese, jv javanese, ka georgian, kg kongo,
ki kikuyu, kj kuanyama, kk kazakh, kl greenlandic, km khmer, kn kannada, ko korean, kr kanuri, ks kashmiri, ku kurdish,
kv komi, kw cornish, ky kyrgyz, la latin, lb luxembourgish, lg ganda, li limburgish, ln lingala, lo lao, lt lithuanian,
lu luba, lv latvian, mg malagasy, mh marshallese, mi maori, mk macedonian, ml malayalam, mn mongolian, mr marathi,
ms malay, mt maltese, my burmese, na nauru, nb bokmal, nd ndebele, ne nepali, ng ndonga, nl dutch, nn nynorsk,
no norwegian, nr southndebele, nv navajo, ny chichewa, oc occitan, oj ojibwa, om oromo, or odia, os ossetian,
pa punjabi, pi pali, pl polish, ps pashto, pt portuguese, qu quechua, rm romansh, rn rundi, ro romanian, ru russian,
rw kinyarwanda, sa sanskrit, sc sardinian, sd sindhi, se sami, sg sango, sh serbocroatian, si sinhala, sk slovak,
sl slovenian, sm samoan, sn shona, so somali, sq albanian, sr serbian, ss swati, st sotho, su sundanese, sv swedish,
sw swahili, ta tamil, te telugu, tg tajik, th thai, ti tigrinya, tk turkmen, tl tagalog, tn tswana, to tongan,
tr turkish, ts tsonga, tt tatar, tw twi, ty tahitian, ug uyghur, uk ukrainian, ur urdu, uz uzbek, ve venda,
vi vietnamese, vo volapuk, wa walloon, wo wolof, xh xhosa, yi yiddish, yo yoruba, za zhuang, zh chinese, zu zulu
"""
"""The codes of two letters, each with its language's name in English; longer codes are too many to list."""

_OTHER_NAMES = """
zh mandarin, zh cantonese, fa farsi, my myanmar, km cambodian, nl flemish, es castilian, tl filipino, ro moldavian,
pa panjabi, de deutsch, fr francais, es espanol, ja jp, zh cn, ko kor, el gr, cs cz, da dk, uk ua, vi vn
"""


def _parse_codes(names: str) -> dict[str, str]:
    return {name: code for code, name in (pair.split() for pair in names.split(","))}


def check_language_code(language: str, where: str) -> None:
    """Refuse what is not a language code: `german`, `xx`. Regions and scripts may follow: `pt-BR`, `zh_Hant`.

    >>> check_language_code("pt-BR", "by_language")
    """
    codes = _parse_codes(_NAMES)
    first = re.split("[-_]", language.lower())[0]
    if _TAG.fullmatch(language) and (len(first) > _TWO_LETTERS or first in codes.values()):
        return
    nearest = find_nearest_code(language)
    raise UsageError(
        f'{where}: "{language}" is not a language code',
        help=f'did you mean "{nearest}"?' if nearest else "use codes such as en, de, zh, pt-BR",
    )


def find_nearest_code(language: str) -> str | None:
    """Find the code of the language that was probably meant; None if there is none.

    >>> [find_nearest_code(word) for word in ("German", "japanes", "jp", "zh-hans!", "-")]
    ['de', 'ja', 'ja', 'zh', None]
    """
    codes = _parse_codes(_NAMES) | _parse_codes(_OTHER_NAMES)
    plain = language.lower()
    first = re.split("[^a-z]", plain)[0]
    if first in codes.values():
        return first
    name = next((name for name in (plain, first) if name in codes), None) or find_nearest(plain, codes)
    return codes[name] if name else None
