import sys

import pytest
from gristmill_testing.fake_packages import forget_packages, install_package

from gristmill.core.errors import UsageError
from gristmill.runtime.plugins import (
    READER,
    STEP,
    find_package_of,
    find_plugin,
    list_plugin_names,
    list_plugins,
    refuse_shadowed,
)

STEPS = {"gristmill.steps": {"shout": "fake_shout.steps:Shout"}}
MODULES = {"fake_shout/__init__.py": "", "fake_shout/steps.py": "Shout = 3\n", "fake_shout/words.txt": "a\n"}


def test_plugins_are_found_by_kind_and_name_and_imported_only_by_load(site):
    install_package(site, "fake-shout", STEPS | {"console_scripts": {"x": "fake_shout:main"}}, MODULES, version="2.1")
    install_package(site, "unrelated", {"console_scripts": {"y": "unrelated:main"}})
    [plugin] = [plugin for plugin in list_plugins() if plugin.package.name == "fake-shout"]
    assert str(plugin) == "step 'shout' of package fake-shout 2.1"
    assert find_plugin(STEP, "shout") == plugin
    assert find_plugin(READER, "shout") is None
    assert "shout" in list_plugin_names(STEP)
    assert find_package_of("fake_shout.steps") == find_package_of("fake_shout") == plugin.package
    assert find_package_of("fake_shouting") is None
    assert "fake_shout" not in sys.modules
    assert plugin.load() == 3


def test_two_packages_with_one_name_are_refused_only_where_it_is_used(site):
    install_package(site, "fake-a", {"gristmill.steps": {"shout": "fake_a:Shout", "other": "fake_a:Other"}})
    install_package(site, "fake-b", STEPS)
    assert find_plugin(STEP, "other").package.name == "fake-a"
    with pytest.raises(UsageError, match=r"step 'shout' is provided by several packages: fake-a 1\.0 and fake-b 1\.0"):
        find_plugin(STEP, "shout")


def test_the_name_of_something_built_in_is_refused(site):
    install_package(site, "fake-shout", STEPS)
    refuse_shadowed(STEP, "length")
    with pytest.raises(UsageError, match=r"package fake-shout 1\.0 provides the step 'shout'.*built-in step"):
        refuse_shadowed(STEP, "shout")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("Other = 1", "AttributeError"),
    ],
)
def test_a_failing_import_names_the_package(site, content, reason):
    install_package(site, "fake-shout", STEPS, MODULES | {"fake_shout/steps.py": content})
    plugin = find_plugin(STEP, "shout")
    with pytest.raises(UsageError, match=rf"step 'shout' of package fake-shout 1\.0 cannot be imported.*{reason}"):
        plugin.load()


def test_a_package_that_comes_first_on_the_path_hides_a_later_one(site, tmp_path, monkeypatch):
    install_package(site, "Fake_Shout", STEPS, version="1.0")
    install_package(tmp_path / "first", "fake-shout", STEPS, version="2.0")
    monkeypatch.syspath_prepend(tmp_path / "first")
    assert find_plugin(STEP, "shout").package.version == "2.0"


def fingerprint():
    forget_packages()
    return find_plugin(STEP, "shout").package.fingerprint()


@pytest.mark.parametrize("editable", [False, True])
def test_the_fingerprint_depends_on_every_file_of_the_package(site, tmp_path, editable, monkeypatch):
    sources = tmp_path / "project" if editable else None
    folder = sources or site
    monkeypatch.syspath_prepend(folder)
    info = install_package(site, "fake-shout", STEPS, MODULES, sources=sources)
    prints = [fingerprint()]
    (folder / "fake_shout/__pycache__").mkdir(exist_ok=True)
    (folder / "fake_shout/__pycache__/steps.cpython-311.pyc").write_bytes(b"compiled")
    assert fingerprint() == prints[0]
    for path in ("fake_shout/steps.py", "fake_shout/words.txt"):
        (folder / path).write_text("changed\n")
        prints.append(fingerprint())
    (info / "entry_points.txt").write_text("[gristmill.steps]\nshout = fake_shout.steps:Other\n")
    prints.append(fingerprint())
    assert len(set(prints)) == len(prints)


def test_an_editable_module_without_a_package(site, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "project")
    entry_points = {"gristmill.steps": {"shout": "fake_one_file:Shout"}}
    install_package(site, "fake-shout", entry_points, {"fake_one_file.py": "Shout = 3"}, sources=tmp_path / "project")
    before = fingerprint()
    (tmp_path / "project/fake_one_file.py").write_text("Shout = 4")
    assert fingerprint() != before
    assert find_package_of("fake_one_file").name == "fake-shout"


def test_packages_in_one_namespace_are_told_apart(site):
    for name in ("a", "b"):
        entry_points = {"gristmill.steps": {name: f"fake_space.{name}.steps:Step"}}
        modules = {f"fake_space/{name}/__init__.py": "", f"fake_space/{name}/steps.py": "Step = 1"}
        install_package(site, f"fake-space-{name}", entry_points, modules)
    assert find_package_of("fake_space.a.steps").name == "fake-space-a"
    assert find_package_of("fake_space.b").name == "fake-space-b"
    assert find_package_of("fake_space") is None
