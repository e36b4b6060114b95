"""The minimum of work for tokens on disk: `python -m benchmarks.sides.bare_tokenize CORPUS TOKENIZER OUTPUT`.

Two processes, each with half of the file: msgspec decodes lines, fastokens encodes texts, ids are written in one write
for each 8 MiB of input. Nothing is checked, packed or synced.
"""

import os
import subprocess
import sys
from pathlib import Path

BLOCK = 8 << 20


def main():
    if len(sys.argv) == 4:
        halves = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], str(half)]) for half in range(2)]
        sys.exit(max(half.wait() for half in halves))
    corpus, tokenizer, output, half = sys.argv[1:]
    encode_half(Path(corpus), Path(tokenizer), Path(output), int(half))


def encode_half(corpus, folder, output, half):
    os.environ["FASTOKENS_BPE_THREADS"] = "1"
    import fastokens
    import msgspec

    class Record(msgspec.Struct, gc=False):
        text: str

    tokenizer = fastokens.Tokenizer.from_file(str(folder / "tokenizer.json"))
    decode = msgspec.json.Decoder(Record).decode
    with corpus.open("rb") as file, (output / f"{half}.bin").open("wb") as out:
        size = corpus.stat().st_size
        position = start_of_line(file, size // 2 * half)
        stop = size if half else start_of_line(file, size // 2)
        file.seek(position)
        while position < stop:
            lines = file.readlines(min(BLOCK, stop - position))
            position += sum(map(len, lines))
            texts = [decode(line).text for line in lines]
            ids, _ = tokenizer.encode_batch_flat(texts, split_special_tokens=True)
            out.write(ids)  # uint32


def start_of_line(file, position):
    if not position:
        return 0
    file.seek(position - 1)
    file.readline()
    return file.tell()


if __name__ == "__main__":
    main()
