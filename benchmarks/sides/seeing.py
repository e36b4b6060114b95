"""The viewer and the report as a person meets them: `python -m benchmarks.sides.seeing SIDE ...`.

* `page DATASET`: `gristmill view` from its start until the page and its first rows have been sent.
* `search DATASET QUERY KIND`: a search through the server, from the request to its last line; the server runs already.
* `screen DATASET`: `gristmill view --tty` in a terminal, from its start until the first screen is drawn.
* `report RECIPE`: a run of two workers, and the seconds in it that its report takes.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
import urllib.parse
import urllib.request

VIEW = [sys.executable, "-m", "gristmill", "view"]
FIRST_ROW = re.compile(rb"row 0\b")


@contextlib.contextmanager
def serve(dataset):
    """Start the viewer, and yield its address."""
    process = subprocess.Popen([*VIEW, dataset, "--no-browser"], stdout=subprocess.PIPE, text=True)
    try:
        yield next(line for line in process.stdout if " at http://" in line).split(" at ")[1].strip()
    finally:
        process.kill()
        process.wait()


def ask(address, request="", **words):
    return urllib.request.urlopen(f"{address}{request}?{urllib.parse.urlencode(words)}")


def page(dataset):
    began = time.perf_counter()
    with serve(dataset) as address:
        ask(address).read()
        [about, *_] = json.load(ask(address, "info"))
        rows = json.load(ask(address, "rows", name=about["name"], count=10))["rows"]
        seconds = time.perf_counter() - began
    if problems := [row["bad"] for row in rows if "bad" in row]:
        sys.exit(f"rows cannot be shown: {problems[0]}")
    print(json.dumps({"inner": seconds, "rows": about["rows"], "shown": len(rows)}))


def search(dataset, query, kind):
    with serve(dataset) as address:
        [about, *_] = json.load(ask(address, "info"))
        list(ask(address, "search", name=about["name"], query=query, kind=kind, start=about["rows"] - 1))
        began = time.perf_counter()
        lines = ask(address, "search", name=about["name"], query=query, kind=kind)
        first = json.loads(next(lines))
        first_s = time.perf_counter() - began
        *_, last_searched, end = [first, *map(json.loads, lines)]
        seconds = time.perf_counter() - began
    if not end.get("done") or last_searched.get("searched") != about["rows"]:
        sys.exit(f"the search ended with {last_searched}, {end}")
    print(json.dumps({"inner": seconds, "first_s": first_s}))


def screen(dataset):
    began = time.perf_counter()
    pid, terminal = pty.fork()
    if not pid:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [*VIEW, dataset, "--tty"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    drawn = b""
    while not FIRST_ROW.search(drawn):
        drawn += os.read(terminal, 1 << 16)
    seconds = time.perf_counter() - began
    os.write(terminal, b"q")
    with contextlib.suppress(OSError):  # the end of a terminal is an error
        while os.read(terminal, 1 << 16):
            pass
    status = os.waitpid(pid, 0)[1]
    print(json.dumps({"inner": seconds}))
    sys.exit(os.waitstatus_to_exitcode(status))


def report(recipe):
    import gristmill as gm

    gm.run  # noqa: B018  (imports what every run needs)
    began = time.perf_counter()
    from gristmill.pipeline.publishing import side_files

    seconds = [time.perf_counter() - began]
    write_report = side_files.write_report

    def write_and_measure(*args, **options):
        began = time.perf_counter()
        write_report(*args, **options)
        seconds.append(time.perf_counter() - began)

    side_files.write_report = write_and_measure
    began = time.perf_counter()
    gm.run(gm.load_recipe(recipe), workers=2, backend="processes", progress=False)
    whole = time.perf_counter() - began
    print(json.dumps({"inner": whole, "import_s": seconds[0], "report_s": seconds[1], "share": sum(seconds) / whole}))


if __name__ == "__main__":
    {"page": page, "search": search, "screen": screen, "report": report}[sys.argv[1]](*sys.argv[2:])
