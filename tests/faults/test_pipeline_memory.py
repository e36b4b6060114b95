"""The parent's memory with 100,000 tasks: their descriptions, their receipts, and both read back by a later run."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from pathlib import Path

import pyarrow as pa

from gristmill.core.books import Account
from gristmill.core.records import ORIGIN_TYPE, SourceFile
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.runner import StageUnit
from gristmill.pipeline.planning.source_plan import SourcePlan
from gristmill.pipeline.planning.source_plan import Stage
from gristmill.pipeline.stages.receipts import Receipts
from gristmill.pipeline.stages.outputs.split_files import SplitFile
from gristmill.pipeline.planning.units import Span
from gristmill.pipeline.stages.stage_context import SliceResult
from gristmill.shards.stored_files import StoredFile
from gristmill.steps import Read

root, count = Path(sys.argv[1]), 100_000
schema = pa.schema([("origin", ORIGIN_TYPE), ("text", pa.large_string())])
source = SourcePlan("web", Read(read="*"), (), schema, (Stage((), None),), (schema,), [])
receipts = Receipts(root / "receipts.jsonl")
units = []
for number in range(count):
    name = f"part-{number:06d}.jsonl"
    file = SourceFile(f"/data/corpus/{name}", name, 64 << 20, "1700000000", number)
    span = Span(file, 0, 16, 64 << 20)
    unit = StageUnit(source, fingerprint.of("common", span.identity()), (span,))
    units.append(unit)
    data = StoredFile(path=f"{unit.stem}-train-0.jsonl.zst", bytes=20_000_000 + number, xxh3=f"{number:016x}")
    origins = StoredFile(path=f"{unit.stem}-train-0.origins.arrow", bytes=500_000, xxh3=f"{number:016x}")
    blocks = [1_300_000 + number + cell for cell in range(16)]
    part = SplitFile(
        split="train", rows=12_345, data=data, data_blocks=blocks, row_blocks=[771] * 16, origins=origins,
        origins_blocks=[31_000] * 16,
    )
    books = [
        Account(step, records_in=12_400, records_out=12_345, dropped={"too_short": 55})
        for step in ("read", "length", "sample")
    ]
    receipts.add(unit.fingerprint, SliceResult(split_files=[part], books=books))
receipts.close()
del receipts
again = Receipts(root / "receipts.jsonl")
assert all(again.get(unit.fingerprint, SliceResult) is not None for unit in units)
# Not `ru_maxrss`, which a process takes over from the one that started it.
[peak] = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(json.dumps({"mib": int(peak) / 1024}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_hundred_thousand_tasks(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mib"] < 250
