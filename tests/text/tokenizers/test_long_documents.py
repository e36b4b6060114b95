"""A document of 60 MB, in a process of its own, with each engine: bounded memory."""

import json
import sys

import pytest
from gristmill_testing.scripts import run
from gristmill_testing.small_tokenizers import trained

CODE = """
import resource, sys
sys.path[:] = json.loads(sys.argv[1])
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.files import find_tokenizer
text = " ".join(f"word{number} and {number * number}\\n" for number in range(2_400_000))[:60_000_000]
assert len(text) == 60_000_000
engine = load_engine(find_tokenizer(sys.argv[2]), sys.argv[3])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ids, offsets = engine.encode([text])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([len(ids), int(ids[::1000].sum()), (peak - before) / 1024]))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_engines_in_bounded_memory(tmp_path):
    trained(tmp_path)
    found = {}
    for engine in ("fastokens", "tokenizers"):
        done = run("-c", f"import json\n{CODE}", json.dumps(sys.path), tmp_path, engine, seconds=800)
        assert done.returncode == 0, done.stderr
        found[engine] = json.loads(done.stdout)
    assert found["fastokens"][:2] == found["tokenizers"][:2]
    assert max(mebibytes for *_, mebibytes in found.values()) < 800, found
