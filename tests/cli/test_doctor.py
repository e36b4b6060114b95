import json

import pyarrow as pa
from gristmill_testing.fake_packages import install_package

from gristmill import __version__
from gristmill.cli.doctor import collect_facts
from gristmill.engine import machine as resources


def test_facts_for_a_bug_report(gristmill):
    facts = json.loads(gristmill("doctor", "--json").out)
    assert facts["gristmill"]["version"] == __version__
    assert facts["machine"]["usable CPUs"] == len(resources.find_usable_cpus())
    assert facts["packages"]["pyarrow"] == pa.__version__
    assert "pytest" not in facts["packages"]
    assert "kernels" in facts["folders"]["kernel cache"]


def test_the_plan_cache(gristmill, tmp_path):
    for setting, shown in (("off", "off"), (str(tmp_path / "plans"), f"{tmp_path}/plans: no remembered checks yet")):
        facts = json.loads(gristmill("doctor", "--json", GRISTMILL_PLAN_CACHE=setting).out)
        assert facts["folders"]["plan cache"] == shown


def test_the_same_for_people(gristmill):
    out = gristmill("doctor").out
    for heading in ("gristmill", "machine", "limits", "folders", "packages", "plugins"):
        assert heading in out.splitlines()


def test_plugins_are_listed_without_being_imported(site):
    entry_points = {"gristmill.steps": {"shout": "fake_shout:Shout"}, "gristmill.readers": {"recs": "fake_shout:read"}}
    install_package(site, "fake-shout", entry_points, {"fake_shout.py": "1 / 0"}, version="2.1")
    assert collect_facts()["plugins"]["fake-shout 2.1"] == "reader recs, step shout"
