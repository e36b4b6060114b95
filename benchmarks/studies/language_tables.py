"""Derives the tables of languages from translations of the same pages: `language_tables.py FILE.jsonl…`.

The files are JSON lines with `id`, `lang` and `text`; ids hold the path of the page, which translations share below
the folder `translations/LANG/`. Made with the lessons of microsoft/Web-Dev-For-Beginners (MIT licence), 54 languages,
the help of GNOME (Debian's gnome-user-docs 43), and for Khmer that of LibreOffice (libreoffice-help-km 7.4). Lists of
stop words are those of the package stopwordsiso 0.7 (MIT licence); a language without a list gets its most frequent
words.

A rule of a language is the English one, moved so far that nine of ten translations stay as near to it as their English
originals. Pages count as they are, with code and English names in them: these make the words of a Japanese page longer,
so bounds are only widened, except for the number of words. From pages that exist in both languages:

* the tenth percentile of words / words in English scales `min_words` and divides `max_lines_per_word` of `fineweb`, the
  ninetieth scales `max_words`;
* lengths of words scale `min_mean_word_length` (the tenth percentile, at most 3) and `max_mean_word_length` (the
  ninetieth, at least 10);
* the odds of a word with letters scale those of `min_alphabetic_word_ratio`, and what translations have more of short
  lines widens `max_short_line_ratio`; `min_terminal_line_ratio` is scaled, and off where lines need no mark at their
  end, like the rules of `c4` about sentences;
* word pieces: how many words say what one English word says, by the median, without code, in the first file that has
  the language (some translations of GNOME are partly in English). It scales
  `min_words_per_line` of `c4`. Where it is two or more and words are written with spaces, the rules of
  `gopher_repetition` about n words in a row are moved to as many words as n English ones. In scripts without spaces a
  piece has several letters already (`_SPACELESS_BLOCKS` of `character_classes.py`);
* stop words: the most frequent ones, 12 or as many more as it takes until parts of pages, as long as 80 English words,
  have two of them as often as English parts have two of the English ones. Where 40 are not enough, the rule is off. Of
  scripts without spaces, where each letter is a word, single letters; where the lists have none, the rule is off.

Pages with an odd hash of their path are held out: `check` prints what the tables keep of them.
"""

import json
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median, quantiles

import stopwordsiso
import xxhash

from gristmill import steps
from gristmill.core.records import documents
from gristmill.text.quality.character_classes import is_one_word

TABLE = Path(__file__).parents[2] / "src/gristmill/steps/quality/language_tables.json"
NUM_STOP_WORDS = 12
MAX_STOP_WORDS = 40
PART_WORDS = 80
MIN_SHARE = 0.1
MIN_PAGES = 5
LETTERS_ONLY = {"zh", "ja"}
"""Scripts without spaces whose function words are single letters."""
UNMARKED = {"th", "my", "km", "lo", "bo"}
"""Scripts without spaces whose function words are longer, and whose lines may end without a mark."""
LEFT_OUT = {"en", "pcm"}
"""Languages that the defaults are for, or for which there are no lists and no letters of their own."""
SAME_CODES = {"tw": "zh", "hk": "zh", "mo": "zh", "br": "pt", "nb": "no"}
COPIED = {"lo": "th"}
"""Languages without translations, and the related ones whose table they get."""
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|https?://\S+|<[^>]+>", re.DOTALL)


def read_pages(paths):
    """Read the pages by language, number of the file and path."""
    pages = defaultdict(dict)
    for number, path in enumerate(paths):
        with Path(path).open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                page = re.sub(r"^(?:.*?/)?translations/[\w-]+/|^[^/]+/", "", record["id"])
                text = record["text"].split("<!-- CO-OP TRANSLATOR DISCLAIMER START")[0]  # the same on every page
                language = record["lang"].split("-")[0]
                pages[SAME_CODES.get(language, language)].setdefault((number, page), text)
    return pages


def without_code(text):
    return CODE.sub(" ", text)


def is_held_out(page):
    return xxhash.xxh3_64_intdigest(page[1].encode()) % 2 == 1


def measure(texts):
    """Return the scores of the rules, each for all texts."""
    rules = steps.GopherQuality().apply(documents(texts), seed=0).scores.values
    lines = steps.Fineweb().apply(documents(texts), seed=0).scores.values
    return {name: values.tolist() for name, values in (rules | lines).items()}


def compare(own, english, name):
    """Return the tenth, fiftieth and ninetieth percentile of a score / the English score."""
    ratios = quantiles(
        [one / other for one, other in zip(own[name], english[name], strict=True) if other], n=10, method="inclusive"
    )
    return ratios[0], ratios[4], ratios[8]


def subtract(own, english, name):
    """Return the ninetieth percentile of a score - the English score."""
    differences = [one - other for one, other in zip(own[name], english[name], strict=True)]
    return quantiles(differences, n=10, method="inclusive")[8]


def move_share(share, own, english, name):
    """Move a least share by the tenth percentile of the odds / the English odds, of pages that are not far from it.

    Of 100 English words 80 have letters, odds of 4; if their translation has 300 letters next to the 20 others, of 15.
    """
    ratios = [
        one / (1 - one) / (other / (1 - other))
        for one, other in zip(own[name], english[name], strict=True)
        if share < other < (3 + share) / 4 and one < 1
    ]
    if len(ratios) < MIN_PAGES:
        return share
    odds = quantiles(ratios, n=10, method="inclusive")[0] * share / (1 - share)
    return odds / (1 + odds)


def strip(word):
    """Remove what is neither a letter nor a mark from both ends of a word."""
    is_inside = [unicodedata.category(character)[0] in "LM" for character in word]
    if not any(is_inside):
        return ""
    return word[is_inside.index(True) : len(word) - is_inside[::-1].index(True)]


def cut_into_parts(texts, num_words, *, is_spaceless):
    """Cut texts into parts of so many words."""
    for text in texts:
        words = re.findall(r"\S\s*", text) if is_spaceless else re.findall(r"\S+\s*", text)
        for first in range(0, len(words) - num_words + 1, num_words):
            yield "".join(words[first : first + num_words])


def share_with_stop_words(parts, stop_words):
    failed = steps.GopherQuality(stop_words=stop_words, min_words=0).apply(documents(parts), seed=0).failed
    return 1 - failed["min_stop_words"].mean()


def choose_stop_words(language, texts, ratio, english_share):
    """Choose the most frequent stop words, as many as are needed; [] if no number is enough."""
    if language in UNMARKED:
        return []
    times, num_pages = Counter(), Counter()
    for text in texts:
        words = list(text) if language in LETTERS_ONLY else [strip(word) for word in text.lower().split()]
        times.update(words)
        num_pages.update(set(words))
    listed = {word.lower() for word in stopwordsiso.stopwords(language)} if stopwordsiso.has_lang(language) else None
    chosen = []
    for word, _ in sorted(times.items(), key=lambda item: (-item[1], item[0])):
        is_function_word = word in listed if listed is not None else not word.isascii() or len(word) < 4
        if num_pages[word] >= MIN_SHARE * len(texts) and is_function_word and word and is_one_word(word):
            chosen.append(word)
    parts = list(cut_into_parts(texts, round(PART_WORDS * ratio), is_spaceless=language in LETTERS_ONLY))
    for num_words in range(NUM_STOP_WORDS, min(MAX_STOP_WORDS, len(chosen)) + 1, 4):
        if share_with_stop_words(parts, chosen[:num_words]) >= english_share:
            return chosen[:num_words]
    return []


def move_repetition_rules(ratio):
    """Move the rules about n words in a row to as many words as n English ones; {} where a word is one piece.

    Rules whose runs would be longer than any score measures are off; those that are left find the same repetition.
    """
    if round(ratio) < 2:
        return {}
    moved = {}
    for name, lengths in (("max_top_{}_gram_ratio", range(2, 5)), ("max_duplicate_{}_gram_ratio", range(5, 11))):
        moved |= dict.fromkeys(name.format(length) for length in lengths)
        for length in lengths:
            if round(length * ratio) in lengths:
                moved[name.format(round(length * ratio))] = getattr(steps.GopherRepetition(), name.format(length))
    return moved


def find_translations(shared, translations, english):
    """Return the pages that say the same in both languages: others were translated from another version."""
    lengths = {page: len(without_code(translations[page])) / len(without_code(english[page])) for page in shared}
    usual = median(lengths.values())
    return [page for page in shared if 2 / 3 < lengths[page] / usual < 3 / 2]


def derive(pages):
    """Derive the table of each language."""
    tables = {}
    english = pages["en"]
    own_english = [without_code(text) for page, text in english.items() if not is_held_out(page)]
    english_parts = list(cut_into_parts(own_english, PART_WORDS, is_spaceless=False))
    english_share = share_with_stop_words(english_parts, steps.GopherQuality().stop_words)
    for language, translations in sorted(pages.items()):
        shared = [page for page in translations if page in english and not is_held_out(page)]
        if language in LEFT_OUT or len(shared) < MIN_PAGES:
            continue
        shared = find_translations(shared, translations, english)
        own, other = (measure([texts[page] for page in shared]) for texts in (translations, english))
        complete = [page for page in shared if page[0] == min(shared)[0]]
        prose, other_prose = (
            measure([without_code(texts[page]) for page in complete]) for texts in (translations, english)
        )
        low, _, high = compare(own, other, "words")
        shortest, _, longest = compare(own, other, "mean_word_length")
        ratio = compare(prose, other_prose, "words")[1]
        terminal = 0.12 * min(1, compare(own, other, "terminal_line_ratio")[0])
        texts = [without_code(text) for page, text in translations.items() if not is_held_out(page)]
        stop_words = choose_stop_words(language, texts, ratio, english_share)
        is_spaceless = language in LETTERS_ONLY | UNMARKED
        repetition = {} if is_spaceless else move_repetition_rules(ratio)
        print(f"{language}: {ratio:.2f} {'letters' if is_spaceless else 'words'} for an English word")
        quality = {
            "min_words": round(50 * low),
            "max_words": round(100 * high) * 1000,
            "min_mean_word_length": round(min(3, 3 * shortest), 1),
            "max_mean_word_length": round(max(10, 10 * longest), 1),
            "min_alphabetic_word_ratio": round(move_share(0.8, own, other, "alphabetic_word_ratio"), 2),
            **({"stop_words": stop_words} if stop_words else {"min_stop_words": None}),
        }
        lines = {
            "min_terminal_line_ratio": None if language in UNMARKED else round(terminal, 2),
            "max_short_line_ratio": round(min(0.95, 0.67 + max(0, subtract(own, other, "short_line_ratio"))), 2),
            "max_lines_per_word": round(0.3 / low, 2),
        }
        tables[language] = {
            "gopher_quality": quality,
            "fineweb": lines,
            "c4": {
                "min_words_per_line": max(2, round(5 * ratio)),
                **({"require_terminal_punctuation": None, "min_sentences": None} if language in UNMARKED else {}),
            },
            **({"gopher_repetition": repetition} if repetition else {}),
        }
    return dict(sorted((tables | {to: tables[like] for to, like in COPIED.items()}).items()))


def check(pages, tables):
    """Print what the tables keep of the pages that were held out, and what the defaults keep."""
    print("| language | pages | defaults keep | tables keep | others with its stop words |\n|---|---|---|---|---|")
    for language, table in {"en": {"gopher_quality": {}}, **tables}.items():
        texts = [text for page, text in pages[language].items() if is_held_out(page)]
        if not texts:
            continue
        others = [text for other, own in pages.items() if other != language for text in own.values()][::7]
        plain, changed = steps.GopherQuality(), steps.GopherQuality(**table["gopher_quality"])
        kept = [filtered.apply(documents(texts), seed=0).batch.num_rows for filtered in (plain, changed)]
        failed = changed.apply(documents(others), seed=0).failed.get("min_stop_words")
        alike = "" if failed is None else f"{1 - failed.mean():.0%}"
        print(f"| {language} | {len(texts)} | {kept[0]} | {kept[1]} | {alike} |")


def main():
    pages = read_pages(sys.argv[1:])
    tables = derive(pages)
    lines = ",\n".join(f'"{language}": {json.dumps(table, ensure_ascii=False)}' for language, table in tables.items())
    TABLE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    check(pages, tables)


if __name__ == "__main__":
    main()
