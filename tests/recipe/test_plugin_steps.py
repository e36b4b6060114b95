"""Steps of installed packages in recipes."""

import json

import pytest
from gristmill_testing.fake_packages import forget_packages, install_package

import gristmill as gm
from gristmill.core.errors import NotUpToDateError, UsageError
from gristmill.recipe.dump import dump_recipe
from gristmill.recipe.load import load_recipe, parse_recipe

SHOUT = """
import pyarrow.compute as pc
from gristmill.core.records import StepResult
from gristmill.core.step import FilterStep, GlobalStep, Step
from gristmill.steps.edit_columns import put_columns

class Shout(FilterStep, tag="shout", frozen=True, kw_only=True):
    '''Upper-case texts.'''
    mark: str = "!"

    def apply(self, batch, seed):
        texts = pc.replace_substring_regex(pc.utf8_upper(batch.column("text")), "$", self.mark)
        return StepResult(put_columns(self, batch, {"text": texts})[0])

class Gather(GlobalStep, tag="gather", frozen=True, kw_only=True):
    '''A step without a barrier.'''

class Bare(Step, tag="bare", frozen=True, kw_only=True):
    '''Neither local nor global.'''

def function():
    pass
"""


def install(site, **steps):
    entry_points = {"gristmill.steps": {name: f"fake_shout:{value}" for name, value in steps.items()}}
    install_package(site, "fake-shout", entry_points, {"fake_shout.py": SHOUT}, version="1.5")
    forget_packages()


def recipe_with(step, output="out"):
    return f"{{output: {output}, sources: {{web: {{read: a.jsonl}}}}, steps: [{step}, write: {{format: jsonl}}]}}"


def test_a_step_of_a_package_is_loaded_checked_and_dumped_like_any_other(site):
    install(site, shout="Shout")
    recipe = parse_recipe(recipe_with("shout: {mark: '?'}"))
    assert type(recipe.steps[0]).__name__ == "Shout"
    assert recipe.steps[0].mark == "?"
    assert parse_recipe(dump_recipe(recipe)) == recipe
    with pytest.raises(UsageError, match='shout has no key "marks"') as raised:
        parse_recipe(recipe_with("shout: {marks: '?'}"))
    assert 'did you mean "mark"?' in raised.value.help


def test_a_misspelled_name_finds_steps_of_packages(site):
    install(site, shout="Shout")
    with pytest.raises(UsageError, match='there is no step "shuot"') as raised:
        parse_recipe(recipe_with("shuot"))
    assert 'did you mean "shout"?' in raised.value.help


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("function", "must be a class derived from LocalStep, FilterStep or GlobalStep, not <function"),
        ("SHOUT", "cannot be imported"),
        ("pc", "must be a class derived from"),
        ("StepResult", "must be a class derived from"),
        ("Bare", "must be a class derived from"),
        ("Gather", "the tag of Gather is 'gather'"),
    ],
)
def test_an_entry_point_of_the_wrong_kind_is_refused(site, value, message):
    install(site, shout=value)
    with pytest.raises(UsageError, match=f"(?s)step 'shout' of package fake-shout 1.5.*{message}"):
        parse_recipe(recipe_with("shout"))


def test_a_package_may_not_replace_a_built_in_step(site):
    install(site, length="Shout")
    with pytest.raises(UsageError, match=r"package fake-shout 1\.5 provides the step 'length'"):
        parse_recipe(recipe_with("length"))
    assert parse_recipe(recipe_with("limit: {max_records: 3}"))  # other recipes are not affected


def test_a_global_step_needs_a_barrier(site, tmp_path):
    install(site, gather="Gather")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    recipe = parse_recipe(recipe_with("gather"), folder=str(tmp_path))
    with pytest.raises(UsageError, match="no barrier is registered for Gather") as raised:
        gm.run(recipe, backend="serial")
    assert "gristmill.barriers" in raised.value.help


def test_a_barrier_of_the_wrong_kind_is_refused(site, tmp_path):
    entry_points = {"gristmill.steps": {"gather": "fake_shout:Gather"}, "gristmill.barriers": {"gather": "json:loads"}}
    install_package(site, "fake-shout", entry_points, {"fake_shout.py": SHOUT})
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    recipe = parse_recipe(recipe_with("gather"), folder=str(tmp_path))
    with pytest.raises(UsageError, match=r"barrier 'gather' of package fake-shout.*with the method pass_sources"):
        gm.run(recipe, backend="serial")


@pytest.fixture
def recipe_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe_with("shout"))
    return file


def uninstall(site):
    for path in site.rglob("entry_points.txt"):
        path.unlink()
    forget_packages()


def test_a_changed_package_is_noticed(site, recipe_file):
    install(site, shout="Shout")
    assert not gm.run(load_recipe(recipe_file), backend="serial").was_up_to_date
    assert gm.run(load_recipe(recipe_file), backend="serial").was_up_to_date
    # Of another size: bytecode of a file with the same size and second would be taken for its own.
    (site / "fake_shout.py").write_text(SHOUT.replace('"!"', '"?"') + "\n# changed\n")
    forget_packages()
    with pytest.raises(NotUpToDateError):
        gm.run(load_recipe(recipe_file), backend="serial")
    result = gm.run(load_recipe(recipe_file), backend="serial", update=True)
    assert [record["text"] for record in result.dataset()] == ["A?", "B?"]


def test_the_package_of_a_missing_step_is_named(site, recipe_file):
    install(site, shout="Shout")
    result = gm.run(load_recipe(recipe_file), backend="serial")
    assert result.manifest.plugins == {"step shout": "fake-shout 1.5"}
    assert result.manifest.versions["fake-shout"].startswith("1.5 ")
    uninstall(site)
    with pytest.raises(UsageError, match=r'step "shout" comes from package fake-shout 1\.5, which is not') as raised:
        load_recipe(recipe_file)
    assert "pip install fake-shout==1.5" in raised.value.help
    with pytest.raises(UsageError, match='there is no step "shouts"'):
        parse_recipe(recipe_with("shouts"), folder=str(recipe_file.parent))


def test_the_package_of_a_missing_step_is_named_in_an_unfinished_folder(site, recipe_file, tmp_path):
    install(site, shout="Shout")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a"}) + "\n" + 99 * "{}\n")
    with pytest.raises(gm.errors.QuarantineError):
        gm.run(load_recipe(recipe_file), backend="serial")
    uninstall(site)
    with pytest.raises(UsageError, match=r'step "shout" comes from package fake-shout 1\.5'):
        load_recipe(recipe_file)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"step shout": 3}', b"\xff"])
def test_a_damaged_record_of_plugins_does_not_hide_the_error(site, recipe_file, tmp_path, content):
    (tmp_path / "out/.gristmill").mkdir(parents=True)
    (tmp_path / "out/.gristmill/plugins.json").write_bytes(content)
    with pytest.raises(UsageError, match='there is no step "shout"'):
        load_recipe(recipe_file)
