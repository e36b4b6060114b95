"""`gristmill tune`: from the scores of a run to the next recipe."""

import json

RECIPE = """\
output: out
sources:
  web: {read: "*.jsonl"}
steps:
  - scores: {min_words: 8}
  - write: {format: jsonl}
"""


def test_a_new_threshold_is_tried_written_and_run(gristmill, tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "word " * count}) + "\n" for count in range(1, 21)))
    gristmill("run", "recipe.yaml", "--backend", "serial", folder=tmp_path)
    shown = gristmill("tune", "out", folder=tmp_path).out
    assert "13 of 20 documents pass the filters (65.0%)" in shown
    assert "scores.min_words" in shown
    assert "dropped at 7, web:a.jsonl@" in shown
    assert all(len(line) <= 80 or "near" in line for line in shown.splitlines())
    tuned = gristmill(
        "tune", "out", "--set", "scores.min_words=5", "--recipe", "recipe.yaml", "--write", "new.yaml", "--json",
        folder=tmp_path,
    )  # fmt: skip
    source = json.loads(tuned.out)["sources"][0]
    assert (tmp_path / "new.yaml").read_text() == RECIPE.replace("min_words: 8", "min_words: 5")
    assert (source["kept"], source["kept_then"]) == (13, 16)
    gristmill("run", "new.yaml", "--update", "--backend", "serial", folder=tmp_path)
    assert "16 of 20 documents" in gristmill("tune", "out", folder=tmp_path).out
    # A position of a dropped document is what explain takes.
    place = next(word for word in shown.split() if word.startswith("web:a.jsonl@"))
    assert "min_words" in gristmill("explain", "recipe.yaml", place, folder=tmp_path).out


def test_rules_that_remove_most_alone_come_first(gristmill, tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("{min_words: 8}", "{min_words: 3, max_words: 15}"))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "word " * count}) + "\n" for count in range(1, 21)))
    gristmill("run", "recipe.yaml", "--backend", "serial", folder=tmp_path)
    shown = gristmill("tune", "out", folder=tmp_path).out
    rules = [word[0] for line in shown.splitlines() if (word := line.split()) and word[0] in ("min_words", "max_words")]
    assert rules[:2] == ["max_words", "min_words"]


def test_the_cut_of_the_best_is_forecast(gristmill, tmp_path):
    steps = "  - scores: {min_words: 8, keep_scores: true}\n  - keep_best: {by: score_words, count: 3}\n"
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("  - scores: {min_words: 8}\n", steps))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "word " * count}) + "\n" for count in range(1, 21)))
    gristmill("run", "recipe.yaml", "--backend", "serial", folder=tmp_path)
    change = ["--set", "keep_best.count=5", "--recipe", "recipe.yaml", "--write", "new.yaml"]
    shown = gristmill("tune", "out", *change, folder=tmp_path).out
    assert "keep_best would keep 5 of 13 documents; its cut would be score_words 16" in shown
    assert "count: 5}" in (tmp_path / "new.yaml").read_text()


def test_wrong_use(gristmill, dataset, tmp_path):
    assert "has no kept scores" in gristmill("tune", dataset, fails=2).err
    assert "not STEP.RULE=NUMBER" in gristmill("tune", dataset, "--set", "min_words", fails=2).err
    assert "go together" in gristmill("tune", dataset, "--write", tmp_path / "new.yaml", fails=2).err
    other = gristmill("tune", dataset, "--recipe", "recipe.yaml", "--write", tmp_path / "new.yaml", fails=2).err
    assert "another folder" in other
    assert not (tmp_path / "new.yaml").exists()
