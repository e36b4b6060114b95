"""Which share of pages `gopher_repetition` drops in each language: `repetition_by_language.py FILE.jsonl…`.

The files are JSON lines with `text` and `lang`; made for translations of the same pages, whose shares should be alike.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from gristmill import steps
from gristmill.core.records import documents


def main():
    pages = defaultdict(list)
    for path in sys.argv[1:]:
        with Path(path).open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                pages[record["lang"]].append(record["text"])
    print("| language | pages | dropped |\n|---|---|---|")
    for language, texts in sorted(pages.items()):
        dropped = sum(steps.GopherRepetition().apply(documents(texts), seed=0).dropped.values())
        print(f"| {language} | {len(texts)} | {dropped} |")


if __name__ == "__main__":
    main()
