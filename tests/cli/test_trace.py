import json


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
