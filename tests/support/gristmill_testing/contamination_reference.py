"""A slow second implementation of `decontaminate`, word by word: the oracle of its tests."""

import unicodedata
from fractions import Fraction

_SCRIPTS_WITHOUT_SPACES = ("CJK UNIFIED", "CJK COMPAT", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


def split_words(text):
    """The words of a text in lower case without accents; a letter of a script without spaces is a word."""
    words, word = [], ""
    for character in text:
        category = unicodedata.category(character)
        if category in ("Mn", "Me", "Cf"):
            continue
        if not (character.isalnum() or category == "Mc"):
            words, word = ([*words, word] if word else words), ""
            continue
        bare = [part for part in unicodedata.normalize("NFKD", character.lower()) if not unicodedata.combining(part)]
        folded = bare[0] if len(bare) == 1 and bare[0].isalnum() else character.lower()[0]
        if unicodedata.name(character, "").startswith(_SCRIPTS_WITHOUT_SPACES):
            words, word = [*([*words, word] if word else words), folded], ""
        else:
            word += folded
    return [*words, word] if word else words


def find_passages(items, ngram, min_words):
    """Item -> the word lists that are looked for, and the least words a document must have.

    `items` are (question, answer or None).
    """
    passages = {}
    for number, (question, answer) in enumerate(items):
        words = split_words(question)
        found = [words] if len(words) >= min_words and any(map(str.isalpha, question)) else []
        answer_words = split_words(answer or "")
        passages[number] = [(part, 10) for part in found]
        passages[number] += [(answer_words, 20)] if len(answer_words) >= max(ngram, 13) else []
    return passages


def find_items(items, text, *, ngram, min_words, min_coverage, window, max_items=10):
    """The numbers of the items that a text holds."""
    passages = find_passages(items, ngram, min_words)
    grams_of = {
        (number, part): _grams(words, ngram) if len(words) >= ngram else {tuple(words)}
        for number, texts in passages.items()
        for part, (words, _) in enumerate(texts)
    }
    owners = {}
    for (number, _), grams in grams_of.items():
        for gram in grams:
            owners.setdefault(gram, set()).add(number)
    words = split_words(text)
    found = set()
    for (number, part), grams in grams_of.items():
        item_words, floor = passages[number][part]
        length = len(item_words)
        span = min(length, ngram)
        counted = {gram for gram in grams if len(owners[gram]) <= max_items}
        covers = {gram: set() for gram in counted}
        for place in range(length - span + 1):
            if (gram := tuple(item_words[place : place + span])) in counted:
                covers[gram] |= set(range(place, place + span))
        total = len(set().union(*covers.values()))
        letters = sum(unicodedata.name(word[0], "").startswith(_SCRIPTS_WITHOUT_SPACES) for word in item_words)
        least = max(min_coverage * total, min(total, floor * (1 + Fraction(letters, 2 * length)))) if length else 0
        places = [
            (place, tuple(words[place : place + span]))
            for place in range(len(words) - span + 1)
            if tuple(words[place : place + span]) in counted
        ]
        widest = int(window * length) - span
        best = max(
            (
                len(set().union(*(covers[gram] for place, gram in places if first <= place <= first + widest)))
                for first, _ in places
            ),
            default=0,
        )
        if best and best >= least:
            found.add(number)
    return found


def _grams(words, ngram):
    grams = {tuple(words[place : place + ngram]) for place in range(len(words) - ngram + 1)}
    return {gram for gram in grams if any(letter.isalpha() for word in gram for letter in word)}
