"""The minimum of work for a filter of zstd files: `python -m benchmarks.sides.bare_zstd FOLDER OUTPUT`.

Two processes, each with half of the files: unpack, cut into lines, decode the one field that the filter needs, pack
again. A whole file is held in memory, no line is checked, nothing is counted.
"""

import subprocess
import sys
from pathlib import Path


def main():
    if len(sys.argv) == 3:
        halves = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], str(half)]) for half in range(2)]
        sys.exit(max(half.wait() for half in halves))
    folder, output, half = sys.argv[1:]
    filter_files(sorted(Path(folder).glob("*.zst"))[int(half) :: 2], Path(output))


def filter_files(paths, output):
    import msgspec
    import zstandard

    class Record(msgspec.Struct, gc=False):
        text: str

    decode = msgspec.json.Decoder(Record).decode
    for path in paths:
        with path.open("rb") as file:
            data = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
        kept = [line for line in data.split(b"\n") if line and len(decode(line).text) >= 200]
        packed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(b"\n".join([*kept, b""]))
        (output / path.name).write_bytes(packed)


if __name__ == "__main__":
    main()
