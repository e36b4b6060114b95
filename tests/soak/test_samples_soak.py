"""Samples where it hurts: a tar of a million tiny members, in bounded memory."""

import json
import subprocess
import sys

import pytest

import gristmill as gm
from gristmill.shards.formats.tar import BLOCK, encode_member
from gristmill.stream import Stream

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
NUM_MEMBERS = 1_000_000
MAX_PEAK = 500 << 20
"""Of the largest process: what a run of a few members takes is about 200 MiB."""
SCRIPT = """
import json, resource, sys
import gristmill as gm
from gristmill import steps
tar, output, form = sys.argv[1:]
recipe = gm.Recipe(sources={"a": steps.Read(read=tar)}, steps=[steps.Write(format=form)], output=output)
result = gm.run(recipe, workers=2, progress=False)
usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({
    "records": len(result.dataset()),
    "peak": max(each.ru_maxrss for each in usage) << 10,
    "cpu_s": sum(each.ru_utime + each.ru_stime for each in usage),
}))
"""


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.tar"
    with path.open("wb") as file:
        for number in range(NUM_MEMBERS // 2):
            for extension in ("cls", "wav"):
                file.write(b"".join(encode_member(f"{number:07d}.{extension}", b"%d" % number)))
        file.write(bytes(2 * BLOCK))
    return path


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_a_million_members_in_bounded_memory(tar, tmp_path, form):
    output = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tar), str(output), form], capture_output=True, text=True, check=True
    )
    facts = json.loads(done.stdout.splitlines()[-1])
    print(form, facts)
    assert facts["records"] == NUM_MEMBERS // 2
    assert facts["peak"] < MAX_PEAK
    dataset = gm.open_dataset(output)
    assert dataset.verify().problems == []
    assert dataset[123_456]["wav"] == b"123456"


def test_a_million_foreign_members_are_streamed(tar):
    stream = Stream(str(tar), seed=1, epochs=1)
    batch = next(iter(stream.batches(64)))
    assert batch["cls"].tolist() == [int(content) for content in batch["wav"]]
