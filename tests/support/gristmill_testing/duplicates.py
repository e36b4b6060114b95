"""The slow and obvious way to near-duplicates: sets of tuples of words, and every document with every other."""

import random
import unicodedata

import pyarrow as pa

WITHOUT_SPACES = (
    "CJK",
    "HIRAGANA",
    "KATAKANA",
    "HALFWIDTH KATAKANA",
    "THAI",
    "LAO",
    "KHMER",
    "MYANMAR",
    "BOPOMOFO",
    "TIBETAN",
    "YI",
    "TAI LE",
    "NEW TAI LUE",
    "TAI THAM",
    "MIAO",
    "TANGUT",
    "NUSHU",
    "KHITAN",
    "HENTAIGANA",
    "IDEOGRAPHIC ITERATION",
    "IDEOGRAPHIC CLOSING",
    "KANGXI",
    "OLD CHINESE",
    "PINCHU",
    "MASU",
    "VERTICAL KANA",
    "VERTICAL IDEOGRAPHIC",
    "HANGUL SINGLE",
    "HANGUL DOUBLE",
    "VIETNAMESE ALTERNATE",
)
"""How the names of letters of such scripts begin."""
TANGUT = range(0x17000, 0x18D00)
"""Letters that Python has no names for."""


def words(text):
    """Case, accents, punctuation and spacing do not count; numbers do; some scripts have no spaces between words."""
    found, word = [], ""
    for character in text:
        category = unicodedata.category(character)
        is_spaceless = unicodedata.name(character, "").startswith(WITHOUT_SPACES) or ord(character) in TANGUT
        if category in ("Mn", "Me", "Cf") or (category == "Mc" and is_spaceless) or ord(character) >= 0x33480:
            continue
        is_letter = character.isalnum() or category == "Mc"
        alone = is_spaceless and category in ("Lm", "Lo")
        if (not is_letter or alone) and word:
            found.append(word)
            word = ""
        if is_letter:
            bare = [
                part
                for part in unicodedata.normalize("NFKD", character.lower()).lower()
                if not unicodedata.combining(part)
            ]
            folded = bare[0] if len(bare) == 1 and bare[0].isalnum() else character.lower()[0]
            if alone:
                found.append(folded)
            else:
                word += folded
    return [*found, word] if word else found


def shingles(text, ngram=5):
    found = words(text)
    return {tuple(found[first : first + ngram]) for first in range(len(found) - ngram + 1)}


def jaccard(one, other):
    common = len(one & other)
    return common / (len(one) + len(other) - common) if one and other else 0.0


def alike_pairs(texts, threshold, ngram=5):
    """Pairs of numbers with their similarity, from the threshold on."""
    sets = [shingles(text, ngram) for text in texts]
    return {
        (first, second): found
        for second in range(len(texts))
        for first in range(second)
        if (found := jaccard(sets[first], sets[second])) >= threshold
    }


def planted_pair(similarity, rng, num_shingles=300):
    """Two texts that share a beginning and nothing else, with exactly this similarity of their 5-grams, nearly."""
    common = round(2 * num_shingles * similarity / (1 + similarity))

    def new(count):
        return [f"{rng.getrandbits(48):x}" for _ in range(count)]

    shared = new(common + 4)
    rest = num_shingles - common
    return " ".join(shared + new(rest)), " ".join(shared + new(rest)), common / (2 * num_shingles - common)


def planted(similarity, count, seed=0, **settings):
    """So many pairs: the first texts, the second ones, and how alike each two are."""
    rng = random.Random(seed)
    pairs = [planted_pair(similarity, rng, **settings) for _ in range(count)]
    return [one for one, _, _ in pairs], [other for _, other, _ in pairs], pairs[0][2]


def column(texts):
    return pa.array(texts, pa.large_string())
