"""Documents with copies planted among them, and the exact similarity of each pair."""

import itertools
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

from documents_corpora import python_sources

SHARES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05)


@dataclass
class Planted:
    path: Path
    pairs: list
    """(number, number of the copy, similarity)"""

    def recall(self, removed, threshold):
        alike = [(one, other) for one, other, similarity in self.pairs if similarity >= threshold]
        return sum(one in removed or other in removed for one, other in alike) / max(len(alike), 1)


def planted(corpus, path, num_bytes):
    """Take that many bytes of the corpus, with an edited copy after every tenth document."""
    lines = itertools.chain.from_iterable(file.open("rb") for file in corpus) if corpus else python_sources(num_bytes)
    rng = random.Random(1)
    pairs, texts, waiting = [], [], []
    written = 0
    for line in lines:
        text = json.loads(line)["text"]
        if len(text.split()) < 50:
            continue
        if rng.random() < 0.1:
            waiting.append((len(texts), " ".join(_edited(text.split(" "), rng.choice(SHARES), rng))))
        texts.append(text)
        written += len(text.encode())
        if len(waiting) > 5:
            number, copy = waiting.pop(rng.randrange(len(waiting)))
            pairs.append((number, len(texts), _similarity(texts[number], copy)))
            texts.append(copy)
            written += len(copy.encode())
        if written >= num_bytes:
            break
    with path.open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return Planted(path, pairs)


def _edited(words, share, rng):
    return [f"{rng.getrandbits(40):x}" if rng.random() < share else word for word in words]


def _similarity(one, other, ngram=5):
    sets = []
    for text in (one, other):
        words = re.findall(r"\w+", text.lower())
        sets.append({tuple(words[first : first + ngram]) for first in range(len(words) - ngram + 1)})
    return len(sets[0] & sets[1]) / max(len(sets[0] | sets[1]), 1)
