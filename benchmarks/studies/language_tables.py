"""Derives the tables of languages from translations of the same pages: `language_tables.py FILE.jsonl…`.

The files are JSON lines with `id`, `lang` and `text`; ids hold the path of the page, which translations share below
the folder `translations/LANG/`. Made with the lessons of microsoft/Web-Dev-For-Beginners (MIT licence), 50 languages.
Lists of stop words are those of the package stopwordsiso 0.7 (MIT licence): the words of a list that are in most pages
are taken; a language without a list gets its most frequent words. Code and addresses of the pages do not count.

What is derived for a language, by the medians over pages that exist in both languages:

* words of the page / words of the English page: scales `min_words` and `max_words`, `min_words_per_line` of `c4`, and
  divides `max_lines_per_word` of `fineweb`;
* mean length of words / the English one: scales `min_mean_word_length` and `max_mean_word_length`;
* word pieces: how many words say what one English word says. Where that is two or more and words are written with
  spaces, the rules of `gopher_repetition` about n words in a row are moved to as many words as n English ones. In
  scripts without spaces a piece has several letters already (`_SPACELESS_BLOCKS` of `character_classes.py`);
* stop words: 12 of the most frequent ones. Of scripts without spaces, where each letter is a word, single letters;
  where the lists have none, the rule is off.

Pages with an odd hash of their path are held out: `check` prints what the tables keep of them.
"""

import json
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

import stopwordsiso
import xxhash

from gristmill import steps
from gristmill.core.sample_batches import documents
from gristmill.text.quality.character_classes import is_one_word

TABLE = Path(__file__).parents[2] / "src/gristmill/text/quality/language_tables.json"
NUM_STOP_WORDS = 12
MIN_SHARE = 0.25
MIN_PAGES = 5
LETTERS_ONLY = {"zh", "ja"}
"""Scripts without spaces whose function words are single letters."""
NO_STOP_WORDS = {"th", "my", "km", "lo", "bo"}
LEFT_OUT = {"en", "pcm"}
"""Languages that the defaults are for, or for which there are no lists and no letters of their own."""


def read_pages(paths):
    """Read the pages by language and path, without code and addresses."""
    pages = defaultdict(dict)
    for path in paths:
        with Path(path).open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                page = re.sub(r"^(?:.*?/)?translations/[\w-]+/|^[^/]+/", "", record["id"])
                text = record["text"].split("<!-- CO-OP TRANSLATOR DISCLAIMER START")[0]  # the same on every page
                text = re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|https?://\S+|<[^>]+>", " ", text, flags=re.S)
                pages[record["lang"].split("-")[0]].setdefault(page, text)
    return pages


def is_held_out(page):
    return xxhash.xxh3_64_intdigest(page.encode()) % 2 == 1


def measure(texts):
    values = steps.GopherQuality().apply(documents(texts), seed=0).scores.values
    return values["words"].tolist(), values["mean_word_length"].tolist()


def strip(word):
    """Remove what is neither a letter nor a mark from both ends of a word."""
    is_inside = [unicodedata.category(character)[0] in "LM" for character in word]
    if not any(is_inside):
        return ""
    return word[is_inside.index(True) : len(word) - is_inside[::-1].index(True)]


def choose_stop_words(language, texts):
    """Choose the stop words that are in most pages, the most frequent first."""
    if language in NO_STOP_WORDS:
        return []
    times, num_pages = Counter(), Counter()
    for text in texts:
        words = list(text) if language in LETTERS_ONLY else [strip(word) for word in text.lower().split()]
        times.update(words)
        num_pages.update(set(words))
    listed = {word.lower() for word in stopwordsiso.stopwords(language)} if stopwordsiso.has_lang(language) else None
    chosen = []
    for word, _ in sorted(times.items(), key=lambda item: (-item[1], item[0])):
        is_function_word = word in listed if listed is not None else not word.isascii()
        if num_pages[word] >= MIN_SHARE * len(texts) and is_function_word and word and is_one_word(word):
            chosen.append(word)
    return chosen[:NUM_STOP_WORDS]


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


def derive(pages):
    """Derive the table of each language."""
    tables = {}
    english = pages["en"]
    for language, translations in sorted(pages.items()):
        shared = [page for page in translations if page in english and not is_held_out(page)]
        if language in LEFT_OUT or len(shared) < MIN_PAGES:
            continue
        words, lengths = measure([translations[page] for page in shared])
        english_words, english_lengths = measure([english[page] for page in shared])
        ratio = median(own / other for own, other in zip(words, english_words, strict=True) if other)
        length = median(own / other for own, other in zip(lengths, english_lengths, strict=True) if other)
        texts = [text for page, text in translations.items() if not is_held_out(page)]
        stop_words = choose_stop_words(language, texts)
        is_spaceless = language in LETTERS_ONLY | NO_STOP_WORDS
        repetition = {} if is_spaceless else move_repetition_rules(ratio)
        print(f"{language}: {ratio:.2f} {'letters' if is_spaceless else 'words'} for an English word")
        quality = {
            "min_words": round(50 * ratio),
            "max_words": round(100 * ratio) * 1000,
            "min_mean_word_length": round(3 * length, 1),
            "max_mean_word_length": round(10 * length, 1),
            **({"stop_words": stop_words} if len(stop_words) >= 6 else {"min_stop_words": None}),
        }
        tables[language] = {
            "gopher_quality": quality,
            "fineweb": {"max_lines_per_word": round(0.3 / ratio, 2)},
            "c4": {"min_words_per_line": max(2, round(5 * ratio))},
            **({"gopher_repetition": repetition} if repetition else {}),
        }
    return tables


def check(pages, tables):
    """Print what the tables keep of the pages that were held out, beside what the defaults keep."""
    print("| language | pages | defaults keep | tables keep | others with its stop words |\n|---|---|---|---|---|")
    for language, table in {"en": {"gopher_quality": {}}, **tables}.items():
        texts = [text for page, text in pages[language].items() if is_held_out(page)]
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
