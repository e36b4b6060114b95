"""Documents say what the result files say, and result files come from contests that exist."""

import re
from pathlib import Path

import pytest
from benchmarks.contests import list_contests
from benchmarks.harness.contest import Setting
from benchmarks.harness.environments import PEERS
from benchmarks.harness.results import PUBLISHED, load_result
from benchmarks.instructions import MAX_GROWTH, compare, describe_versions
from benchmarks.reports import performance, readme
from benchmarks.reports.svg import draw_lines
from benchmarks.sides.kernels import KERNELS

CONTESTS = {group: {c.name for c in contests} for group, contests in list_contests(Setting(Path("x"))).items()}
RESULTS = [path for path in sorted(PUBLISHED.glob("*.json")) if path.stem in CONTESTS]


def test_readme_has_the_table_of_the_results():
    text = readme.README.read_text(encoding="utf-8")
    assert readme.put_table(text) == text, "run `make readme-table`"


def test_pages_have_the_tables_of_the_results():
    texts = [page.read_text(encoding="utf-8") for page in performance.PAGES]
    assert list(map(performance.put_tables, texts)) == texts, "run `make readme-table`"
    assert sorted(re.findall("<!-- begin: (.*) -->", "".join(texts))) == sorted(performance.TABLES)
    for name, picture in performance.draw_plots().items():
        assert (performance.IMAGES / name).read_text(encoding="utf-8") == picture, "run `make readme-table`"


def test_names_of_contests_are_unique():
    names = [name for group in CONTESTS.values() for name in group]
    assert len(names) == len(set(names))
    assert {*performance.GROUPS, "stages"} == set(CONTESTS)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_come_from_contests(path):
    result = load_result(path)
    assert set(result["contests"]) <= CONTESTS[path.stem]
    for contest in result["contests"].values():
        assert all(contest[key] for key in ("date", "machine", "load", "versions", "work"))
        for claim in contest["claims"]:
            if "peer" in claim:
                assert claim["value"] == pytest.approx(claim["theirs"] / claim["ours"], rel=0.01)


@pytest.mark.parametrize("path", sorted(PEERS.glob("*.txt")), ids=lambda path: path.stem)
def test_peers_are_pinned(path):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)] == []


def test_pictures_follow_the_theme():
    lines = draw_lines("one & two", "MB", "s", {"cpu": [(10, 1.0), (1000, 2.0)], "flat": [(10, 1.0)]})
    assert "prefers-color-scheme: dark" in lines
    assert "one &amp; two" in lines
    assert lines.count("<polyline") == 2


def test_more_instructions_than_recorded_fail(capsys):
    recorded = {"versions": describe_versions(), "instructions": dict.fromkeys(KERNELS, 1000)}
    counts = dict.fromkeys(KERNELS, int(1000 * (1 + MAX_GROWTH)))
    assert compare(counts, recorded) == 0
    assert compare(counts | {"minhash": 1100}, recorded) == 1
    assert "minhash" in capsys.readouterr().out.splitlines()[-1]
    assert compare(counts | {"minhash": 1100}, recorded | {"versions": {"python": "2.7"}}) == 0
