"""The minimum of work, without a library around it: `documents_bare.py OUTPUT FILE...`.

Unpack, cut into lines, decode the one field that the filter needs, pack again. A whole file is held in memory, no line
is checked, nothing is counted.
"""

import sys
from pathlib import Path

import msgspec
import zstandard


class Record(msgspec.Struct, gc=False):
    text: str


def main():
    output, *paths = map(Path, sys.argv[1:])
    output.mkdir(parents=True, exist_ok=True)
    decode = msgspec.json.Decoder(Record).decode
    for path in paths:
        with path.open("rb") as file:
            data = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
        kept = [line for line in data.split(b"\n") if line and len(decode(line).text) >= 200]
        packed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(b"\n".join([*kept, b""]))
        (output / path.name).write_bytes(packed)


if __name__ == "__main__":
    main()
