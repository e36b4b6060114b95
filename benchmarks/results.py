"""Result files: what a benchmark measured, when, where, and by which command.

Every script that compares Gristmill with a peer has the option `--result FILE`. It writes its ratios to a file in
`benchmarks/results/`, from which `readme_table.py` makes the table of the README. So a number on the front page has a
date, a machine, a load, versions, and a command that produces it again.
"""

import json
import os
import platform
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Comparison:
    """One peer beside Gristmill. The ratio tells how many times as fast Gristmill is."""

    work: str
    peer: str
    ratio: float
    ours: str = ""
    theirs: str = ""


def add_result_option(parser):
    """Add `--result`; the load is taken now, before the benchmark itself loads the machine."""
    parser.add_argument("--result", type=Path, metavar="FILE", help="write the ratios to this result file, too")
    parser.set_defaults(load_before=os.getloadavg()[0])


def write_result(options, data, comparisons, packages):
    """Write a result file if `--result` asks for one.

    `packages` names the distributions whose versions matter. Those of a peer in another environment are missing here,
    and are noted as such.
    """
    if not options.result:
        return
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "load": f"{options.load_before:.1f} at the start",
        "versions": {"python": platform.python_version(), **{name: _find_version(name) for name in packages}},
        "data": data,
        "command": _command_without_local_paths(),
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }
    options.result.parent.mkdir(parents=True, exist_ok=True)
    options.result.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {options.result}; `make readme-table` puts it into the README")


def _find_version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "in another environment"


def _command_without_local_paths():
    """The command as typed, without `--result` and without the folders of this machine."""
    words, result = [], False
    for word in sys.argv[1:]:
        if result or word == "--result":
            result = not result
        elif not word.startswith("--result="):
            words.append(Path(word).name if "/" in word else word)
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])
