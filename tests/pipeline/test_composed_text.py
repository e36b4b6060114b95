"""The text of several fields: by a template, or by a function that makes it, whatever the file."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import documents, texts
from gristmill.pipeline.planning.plan import make_plan
from gristmill.steps import Length, Map, Read, Write
from gristmill.steps.columns import ComposeText

ROWS = [{"title": "A", "body": "x", "n": 1}, {"title": None, "body": "y", "n": 2}, {"title": "C", "body": "z", "n": 3}]


@pytest.fixture(params=["jsonl", "parquet"])
def data(request, tmp_path):
    path = tmp_path / f"in.{request.param}"
    if request.param == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    return str(path)


@pytest.mark.every_case
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_template_makes_the_text_of_any_file(mill, data, form):
    recipe = mill.recipe(
        {"web": Read(read=data, text="{title}: {body} {n}")}, [Length(), Write(format=form)], max_quarantine=1.0
    )
    result = mill.run(recipe)
    assert [record["text"] for record in result.dataset()] == ["A: x 1", "C: z 3"]
    assert [record["body"] for record in result.dataset()] == ["x", "z"]
    [line] = (mill.output / "quarantine/web.jsonl").read_text().splitlines()
    assert json.loads(line)["reason"] == "missing_text"


@pytest.mark.every_case
def test_a_function_makes_the_text_and_sees_the_names_of_the_file(mill, data):
    step = Map(call=lambda record: {**record, "text": f"{record['title']}{record['body']}"}, makes="text")
    result = mill.run(mill.recipe({"web": Read(read=data)}, [step, Write(format="jsonl")]))
    assert [record["text"] for record in result.dataset()] == ["Ax", "Noney", "Cz"]
    assert [record["title"] for record in result.dataset()] == ["A", None, "C"]


def test_a_template_may_add_to_the_text():
    step = ComposeText(template="{{{url}}}\n{text}")
    assert texts(step.apply(documents(["hi"], url=["a.org"]), seed=0).batch) == ["{a.org}\nhi"]
    assert not step.traits.makes_text


def test_templates_that_name_no_field_or_another_one_are_refused(mill, data):
    for template in ("{", "{}", "{title!r}", "{n:.2f}", "{{a}}"):
        with pytest.raises(UsageError, match=r"^text: "):
            Read(read=data, text=template)
    with pytest.raises(UsageError, match="titel"):
        make_plan(mill.recipe({"web": Read(read=data, text="{titel}: {body}")}, []))
