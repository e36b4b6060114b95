import pytest


@pytest.mark.slow
def test_what_it_writes_runs_at_once(gristmill, tmp_path):
    said = gristmill("init", "corpus", folder=tmp_path).out
    assert "gristmill plan corpus/recipe.yaml" in said
    gristmill("plan", "corpus/recipe.yaml", folder=tmp_path)
    gristmill("run", "corpus/recipe.yaml", "--backend", "serial", folder=tmp_path)
    gristmill("verify", "corpus/out", folder=tmp_path)


def test_here_is_the_default(gristmill, tmp_path):
    gristmill("init", folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", "sample.jsonl"]


def test_nothing_is_overwritten(gristmill, tmp_path):
    (tmp_path / "sample.jsonl").write_text("mine")
    assert "sample.jsonl" in gristmill("init", folder=tmp_path, fails=2).err
    assert [path.name for path in tmp_path.iterdir()] == ["sample.jsonl"]
    assert (tmp_path / "sample.jsonl").read_text() == "mine"
