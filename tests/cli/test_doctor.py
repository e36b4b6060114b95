import json

import pyarrow as pa

from gristmill import __version__
from gristmill.engine import resources


def test_facts_for_a_bug_report(gristmill):
    facts = json.loads(gristmill("doctor", "--json").out)
    assert facts["gristmill"]["version"] == __version__
    assert facts["machine"]["usable CPUs"] == len(resources.find_usable_cpus())
    assert facts["packages"]["pyarrow"] == pa.__version__
    assert "pytest" not in facts["packages"]
    assert "kernels" in facts["folders"]["kernel cache"]


def test_the_same_for_people(gristmill):
    out = gristmill("doctor").out
    for heading in ("gristmill", "machine", "limits", "folders", "packages"):
        assert heading in out.splitlines()
