"""Records as plain data: turns, calls of tools, and pictures."""

import pyarrow as pa
import pytest
from gristmill_testing.pictures import photo

import gristmill as gm
from gristmill import steps
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.markup import restore_pictures
from gristmill.report.view.describe import describe_record
from gristmill.report.view.page_requests import Requests
from gristmill.report.write import load_report


def test_pictures_are_sent_as_what_they_are(tmp_path):
    import pyarrow.parquet as pq

    picture = photo(1, "PNG")
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    table = pa.table({
        "image": [{"bytes": picture, "path": "a.png"}, {"bytes": svg, "path": "b.png"}],
        "more": pa.array([[picture, picture], None], pa.list_(pa.binary())),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    rows = open_collections([tmp_path / "a.parquet"])["files"]
    assert [entry["column"] for entry in rows.describe_row(0)["pictures"]] == ["image", "more", "more"]
    assert rows.read_pictures(0) == [picture] * 3
    assert "pictures" not in rows.describe_row(1)
    with pytest.raises(IndexError):
        Requests({"files": rows}).read_picture({"row": ["1"], "index": ["0"]})


def test_dropped_pictures_are_shown(tmp_path):
    """They are base64 in the lines of dropped records."""
    (tmp_path / "photos").mkdir()
    picture = photo(1, "PNG", width=20, height=20)
    (tmp_path / "photos/small.png").write_bytes(picture)
    (tmp_path / "photos/large.png").write_bytes(photo(2, "PNG"))
    recipe = gm.Recipe(
        sources={"photos": steps.Read(read=str(tmp_path / "photos"))},
        steps=[steps.Images(min_width=30), steps.Write(format="webdataset")],
        output=str(tmp_path / "out"),
        keep_dropped="samples",
    )
    gm.run(recipe, backend="serial", progress=False)
    rows = open_collections([tmp_path / "out"])["out · dropped"]
    described = rows.describe_row(0)
    assert described["pictures"] == [{"column": "image", "bytes": len(picture)}]
    assert described["columns"]["image"] == f"{len(picture):,} bytes"
    assert rows.read_pictures(0) == [picture]
    assert rows.score_names == ["images.min_width"]  # "failed": true is no score
    [sample] = load_report(tmp_path / "out").samples.dropped
    assert f"{len(picture):,} bytes" in sample.text


@pytest.mark.parametrize("text", ["iVBORw0KGgoA", "iVBORw0KGgo", "/9j/ is no picture", "R0lGODlh\ud800", "Qk0é", "BM"])
def test_texts_that_begin_like_pictures_stay_texts(text):
    assert isinstance(restore_pictures({"a": [text + "!"]})["a"][0], str)


def test_turns_show_calls_of_tools_and_parts():
    call = {"function": {"name": "find_flight", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image", "image": b"x"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hmm", "tool_calls": [call]},
        {"role": "tool", "name": "find_flight", "content": "LH 400"},
    ]
    user, assistant, tool = (turn["text"] for turn in describe_record({"messages": messages})["turns"])
    assert user.startswith("hello\n")
    assert assistant.startswith("reasoning_content: hmm\ntool_calls: ")
    assert "find_flight" in assistant
    assert tool == "LH 400\nname: find_flight"
    assert describe_record({"conversations": [{"from": "gpt", "value": "hi"}]})["turns"] == [
        {"role": "gpt", "text": "hi"}
    ]
