"""What a notebook shows of a plan and of a result: short, whole, and harmless."""

import json
from html.parser import HTMLParser

from gristmill import steps
from gristmill.pipeline.planning.plan import make_plan


class Tags(HTMLParser):
    """Tags that were opened and not closed, and all text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.seen, self.text = [], set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_reprs_are_short_however_many_files_there_are(mill, tmp_path):
    for number in range(300):
        (tmp_path / f"part-{number}.jsonl").write_text(json.dumps({"text": f"<script>{number}</script>"}) + "\n")
    name = "<b>web"
    recipe = mill.recipe({name: steps.Read(read=str(tmp_path / "*.jsonl"))}, [steps.Length(min_chars=19)])
    plan = make_plan(recipe)
    assert len(repr(plan)) < 300
    assert "300 files" in repr(plan)
    assert "part-7" not in repr(plan)
    shown = Tags(plan._repr_html_())
    assert shown.text == str(plan)
    result = mill.run(recipe)
    assert len(repr(result)) < 300
    assert str(mill.output) in repr(result)
    shown = Tags(result._repr_html_())
    assert not shown.open
    assert {"script", "b"}.isdisjoint(shown.seen)
    for account in result.books[name]:
        assert account.step in shown.text
        assert f"{account.records_out:,}" in shown.text
    assert "too_short 10" in shown.text
