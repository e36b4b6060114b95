"""Language codes (ISO 639): which are valid, which are the same language, which one was probably meant."""

from __future__ import annotations

import re
from functools import cache

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError

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

_SAME_LANGUAGES = """
nb no, nn no,
aar aa, abk ab, afr af, aka ak, alb sq, als sq, amh am, ara ar, arb ar, arg an, arm hy, asm as, ava av, ave ae, aym
ay, aze az, azj az, bak ba, bam bm, baq eu, bel be, ben bn, bih bh, bis bi, bod bo, bos bs, bre br, bul bg, bur my,
cat ca, ces cs, cha ch, che ce, chi zh, chu cu, chv cv, cmn zh, cor kw, cos co, cre cr, cym cy, cze cs, dan da, deu
de, div dv, dut nl, dzo dz, ekk et, ell el, eng en, epo eo, est et, eus eu, ewe ee, fao fo, fas fa, fij fj, fil tl,
fin fi, fra fr, fre fr, fry fy, ful ff, geo ka, ger de, gla gd, gle ga, glg gl, glv gv, gre el, grn gn, guj gu, hat
ht, hau ha, heb he, her hz, hin hi, hmo ho, hrv hr, hun hu, hye hy, ibo ig, ice is, ido io, iii ii, iku iu, ile ie,
ina ia, ind id, ipk ik, isl is, ita it, jav jv, jpn ja, kal kl, kan kn, kas ks, kat ka, kau kr, kaz kk, khk mn, khm
km, kik ki, kin rw, kir ky, kom kv, kon kg, kor ko, kua kj, kur ku, lao lo, lat la, lav lv, lim li, lin ln, lit lt,
ltz lb, lub lu, lug lg, lvs lv, mac mk, mah mh, mal ml, mao mi, mar mr, may ms, mkd mk, mlg mg, mlt mt, mon mn, mri
mi, msa ms, mya my, nau na, nav nv, nbl nr, nde nd, ndo ng, nep ne, nld nl, nno no, nob no, nor no, npi ne, nya ny,
oci oc, oji oj, ori or, orm om, ory or, oss os, pan pa, per fa, pes fa, pli pi, plt mg, pol pl, por pt, pus ps, que
qu, roh rm, ron ro, rum ro, run rn, rus ru, sag sg, san sa, sin si, slk sk, slo sk, slv sl, sme se, smo sm, sna sn,
snd sd, som so, sot st, spa es, sqi sq, srd sc, srp sr, ssw ss, sun su, swa sw, swe sv, swh sw, tah ty, tam ta, tat
tt, tel te, tgk tg, tgl tl, tha th, tib bo, tir ti, ton to, tsn tn, tso ts, tuk tk, tur tr, twi tw, uig ug, ukr uk,
urd ur, uzb uz, uzn uz, ven ve, vie vi, vol vo, wel cy, wln wa, wol wo, xho xh, ydd yi, yid yi, yor yo, zha za, zho
zh, zsm ms, zul zu
"""
"""Codes of three letters (ISO 639-2 and 639-3), and of two, with the code of two letters for the same tables."""


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


def normalize_language_code(language: str) -> str:
    """Return the code in small letters with dashes, and its language by two letters if it has such a code.

    >>> [normalize_language_code(code) for code in ("pt_BR", "deu", "cmn_Hani", "tha-Thai", "nb", "yue")]
    ['pt-br', 'de', 'zh-hani', 'th-thai', 'no', 'yue']
    """
    first, dash, rest = language.lower().replace("_", "-").partition("-")
    return _parse_same_languages().get(first, first) + dash + rest


@cache
def _parse_same_languages() -> dict[str, str]:
    return dict(pair.split() for pair in _SAME_LANGUAGES.split(","))


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
