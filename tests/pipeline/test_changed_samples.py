"""Samples of edited texts, before and after, beside the dropped records."""

import json

from gristmill.steps import Normalize, Pii, Read, Write


def test_samples_before_and_after(mill, tmp_path):
    texts = [f"page {number} by ann{number}@example.com" if number % 2 else f"page {number}" for number in range(60)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    steps = [Normalize(), Pii(), Write(format="jsonl")]
    for keep in ("samples", "all"):
        recipe = mill.recipe({"web": Read(read=str(tmp_path / "web.jsonl"))}, steps, keep_dropped=keep)
        result = mill.run(recipe, overwrite=True)
        lines = [json.loads(line) for line in (mill.output / "dropped/pii-changed.jsonl").read_text().splitlines()]
        assert len(lines) == 20
        assert all(line["after"] == line["before"].rpartition(" ")[0] + " <EMAIL>" for line in lines)
        assert not (mill.output / "dropped/normalize-changed.jsonl").exists()
        assert result.books["web"][-1].counters["replaced:email"] == 30
