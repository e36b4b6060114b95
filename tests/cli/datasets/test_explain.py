import json

import pytest
from gristmill_testing.small_tokenizers import trained

from gristmill.cli.datasets.explain import print_pair
from gristmill.core.quantities import count_cells
from gristmill.pipeline.inspecting.trace import RemovedDocument
from gristmill.shards.dataset import Origin, open_dataset


def test_shows_scores_rules_and_where_it_leaves(gristmill, project):
    shown = gristmill("explain", "recipe.yaml", "data.jsonl:7", "--set", "steps=[gopher_quality]", folder=project).out
    assert "gopher_quality: dropped as min_words" in shown
    assert "FAILS" in shown
    assert "min_stop_words" in shown
    assert "it leaves the recipe at gopher_quality" in shown


def test_the_verdict_comes_first_and_later_steps_are_not_shown(gristmill, project):
    change = ("--set", "steps=[length: {min_chars: 5}, gopher_quality]")
    shown = gristmill("explain", "recipe.yaml", "data.jsonl:7", *change, folder=project).out
    assert shown.splitlines()[0] == "it leaves the recipe at length"
    assert "gopher_quality" not in shown
    assert "1 later step" in shown
    found = json.loads(gristmill("explain", "recipe.yaml", "data.jsonl:7", *change, "--json", folder=project).out)
    assert [step["step"] for step in found["steps"]] == ["length", "gopher_quality"]


@pytest.mark.parametrize("num_columns", [80, 120])
def test_columns_of_wide_characters_are_straight(monkeypatch, capsys, num_columns):
    monkeypatch.setenv("COLUMNS", str(num_columns))
    origin = Origin("web", "a.jsonl", 0, 0)
    texts = ["花间集 赵崇祚 " * 40, "한국어 문장 words " * 30]
    print_pair(
        RemovedDocument(
            origin=origin,
            reason="near_duplicate",
            similarity=0.9,
            is_estimate=False,
            text=texts[0],
            survivor=origin,
            survivor_text=texts[1],
        )
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if " ≠ " in line]
    assert len(lines) > 5
    assert {count_cells(line.partition(" ≠ ")[0]) for line in lines} == {(num_columns - 3) // 2}
    assert max(map(count_cells, lines)) <= num_columns


def test_a_chat_is_shown_as_it_is_rendered(gristmill, tmp_path):
    """The examples that become rows: the text between the marks is what the dataset's loss mask trains."""
    trained(tmp_path / "t")
    turns = [("user", "Hi, 花?"), ("assistant", "First answer."), ("user", "And?"), ("assistant", "Second answer.")]
    chat = {"messages": [{"role": role, "content": text} for role, text in turns]}
    (tmp_path / "a.jsonl").write_text(json.dumps(chat) + "\n")
    (tmp_path / "recipe.yaml").write_text(
        "output: out\nsources: {web: {read: a.jsonl}}\n"
        "steps: [render: {template: chatml}, tokenize: {tokenizer: t}, pack: {row_length: 256}]\n"
    )
    shown = gristmill("explain", "recipe.yaml", "a.jsonl", folder=tmp_path).out
    assert "⟦First answer." in shown
    assert "⟦Second answer." in shown
    assert "⟦And" not in shown
    [example] = json.loads(gristmill("explain", "recipe.yaml", "a.jsonl", "--json", folder=tmp_path).out)["examples"]
    gristmill("run", "recipe.yaml", "--backend", "serial", folder=tmp_path)
    dataset = open_dataset(tmp_path / "out")
    assert [text for text, is_trained in example["spans"] if is_trained] == [
        text for text, is_trained in dataset.spans(0) if is_trained
    ]
    amounts = dataset.manifest.amounts()["web"]
    assert (example["tokens"], example["trained_tokens"]) == (amounts.tokens, amounts.trained_tokens)


def test_json(gristmill, project):
    found = json.loads(gristmill("explain", "recipe.yaml", "data.jsonl:7", "--json", folder=project).out)
    assert found["record"] == {"text": "tiny"}
    assert found["leaves_at"] == "length"
    assert found["steps"][0]["outcome"] == "dropped"


def test_records_are_numbered_from_0_everywhere(gristmill, project, dataset):
    assert "\nrecord 0 of " in gristmill("explain", "recipe.yaml", "data.jsonl", folder=project).out
    for command, number in (("trace", 0), ("trace", -37), ("inspect", "-n1")):
        assert "record 0\n" in gristmill(command, dataset, number).out
    for command in ("explain", "trace", "inspect"):
        assert "Records are numbered from 0" in gristmill(command, "--help").out


def test_length_prints_its_rule_like_the_others(gristmill, project):
    shown = gristmill("explain", "recipe.yaml", "data.jsonl:7", folder=project).out
    assert "record 7 of " in shown
    assert "FAILS min_chars  4  ≥ 5" in shown


def test_find_a_record_by_a_value(gristmill, project, dataset):
    shown = gristmill("explain", "recipe.yaml", "--find", "id=7", folder=project).out
    assert "record 7 of " in shown
    assert "it leaves the recipe at length" in shown
    [number] = json.loads(gristmill("trace", dataset, "--find", "id=20", "--json").out)["numbers"]
    found = json.loads(gristmill("trace", dataset, number, "--json").out)
    assert found["record"]["id"] == 20
    assert f"is in record {number} of" in gristmill("trace", dataset, "--find", "text=document 20").out
    assert "is in no record of" in gristmill("trace", dataset, "--find", "id=7").out
    for wrong in (
        ["--find", "id=none"],
        ["--find", "id"],
        [],
        ["0", "--find", "id=7"],
        ["--removed", "--find", "id=7"],
    ):
        assert "error: " in gristmill("trace", dataset, *wrong, fails=2).err


def test_wrong_use(gristmill, project):
    for place in ("other.jsonl", "data.jsonl:99", "data.jsonl:x"):
        assert "error: " in gristmill("explain", "recipe.yaml", place, folder=project, fails=2).err


def test_a_copy_is_shown_beside_the_document_that_stays_for_it(gristmill, tmp_path):
    words = [f"word{number}" for number in range(60)]
    texts = [" ".join(words), "another text of its own", " ".join([*words[:59], "x"])]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "recipe.yaml").write_text(
        "output: out\nsources: {web: {read: web.jsonl}}\nsteps: [deduplicate: {max_source_loss: 1}]\n"
    )
    command = ("explain", "recipe.yaml", "web.jsonl:2")
    before = json.loads(gristmill(*command, "--json", folder=tmp_path).out)
    assert "not known" in before["steps"][-1]["outcome"]
    assert (before["leaves_at"], before["is_certain"]) == (None, False)
    assert "to the end" not in gristmill(*command, folder=tmp_path).out
    gristmill("run", "recipe.yaml", "--backend", "serial", folder=tmp_path)
    after = json.loads(gristmill(*command, "--json", folder=tmp_path).out)
    assert after["leaves_at"] == "deduplicate"
    assert after["removed"]["reason"] == "near_duplicate"
    assert (after["removed"]["text"], after["removed"]["survivor_text"]) == (texts[2], texts[0])
    assert "survivor: source web" in gristmill(*command, folder=tmp_path).out


def test_a_record_leads_back_to_its_line(gristmill, project):
    gristmill("run", project / "recipe.yaml", "--backend", "serial")
    found = json.loads(gristmill("trace", project / "out", 12, "--json").out)
    data = (project / "data.jsonl").read_bytes()
    [place] = found["places"]
    assert place["origin"]["path"] == str(project / "data.jsonl")
    line = data[place["origin"]["position"] :].split(b"\n")[0].decode()
    assert place["original"] == line
    assert json.loads(line) == found["record"]

    out = gristmill("trace", project / "out", -1).out
    assert "byte" in out
    assert '{"text": "document' in out

    (project / "data.jsonl").write_bytes(data + b'{"text": "one more"}\n')
    assert "has changed" in gristmill("trace", project / "out", 12).out
    (project / "data.jsonl").unlink()
    assert "is missing" in gristmill("trace", project / "out", 12).out


def test_number_out_of_range_is_wrong_use(gristmill, dataset):
    assert "0 to 36" in gristmill("trace", dataset, 37, fails=2).err


def test_within_a_split(gristmill, dataset):
    found = json.loads(gristmill("trace", dataset, 0, "--split", "validation", "--json").out)
    shown = json.loads(gristmill("inspect", dataset, "-n", 1, "--split", "validation", "--json").out)
    assert found["record"] == shown["records"][0]
