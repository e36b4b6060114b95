"""The example package of docs/reference/plugins.md: built, installed into an environment of its own, and run there."""

import json
import mailbox
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "examples/plugin_package"
PAGE = Path(__file__).parents[2] / "docs/reference/plugins.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
[RECIPE] = [block for language, block in BLOCK.findall(PAGE.read_text()) if language == "yml"]
PROGRAM = """
import gristmill as gm
from gristmill import steps
from gristmill_mail.balance import Balance
from gristmill_mail.redact import Redact

sources = {"news": steps.Read(read="news.mbox"), "lists": steps.Read(read="lists.mbox", format="mbox")}
made = [Redact(replacement="<mail>"), Balance(), steps.Write(format="jsonl")]
result = gm.run(gm.Recipe(sources=sources, steps=made, output="out"), backend="serial", progress=False)
exported = gm.export("out", to="lines", path="lines/x", backend="serial", progress=False)
print(result.was_up_to_date, [path.name for path in exported.files])
"""
NUM_MAILS = {"news": 30, "lists": 12}


class Environment:
    """A virtual environment that has this one's packages and those that a test installs."""

    def __init__(self, folder):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin/python"
        site = next(folder.glob("lib/python*/site-packages"))
        parent = sysconfig.get_paths()["purelib"]
        (site / "parent.pth").write_text(f"import site; site.addsitedir({parent!r})\n")

    def install(self, *arguments):
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
        ]
        subprocess.run([*command, "--no-build-isolation", *arguments], check=True)

    def uninstall(self, name):
        command = [sys.executable, "-m", "pip", "--python", self.python, "uninstall", "--quiet", "--yes", name]
        subprocess.run(command, check=True)

    def run(self, *arguments, cwd=None, check=True):
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        run = subprocess.run([self.python, *arguments], cwd=cwd, capture_output=True, text=True, env=environment)
        if check:
            assert run.returncode == 0, run.stderr
        return run

    def gristmill(self, *arguments, **settings):
        return self.run("-m", "gristmill", *arguments, **settings)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with the wheel of the example package."""
    pytest.importorskip("setuptools", reason="the example package is built with setuptools")
    folder = tmp_path_factory.mktemp("plugin")
    sources = shutil.copytree(PACKAGE, folder / "package")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", folder, sources], check=True)
    [wheel] = folder.glob("gristmill_mail-1.0.0-*.whl")
    environment = Environment(folder / "environment")
    environment.install(wheel)
    return environment


@pytest.fixture
def mails(tmp_path):
    """A folder with a recipe and two mail archives."""
    folder = tmp_path / "mails"
    folder.mkdir()
    for name, count in NUM_MAILS.items():
        archive = mailbox.mbox(folder / f"{name}.mbox")
        for number in range(count):
            message = mailbox.mboxMessage()
            message["Subject"] = f"{name} {number}"
            message.set_payload(f"Mail {number}:\nwrite to a.{number}@example.org.\n")
            archive.add(message)
        archive.close()
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


def records(folder):
    files = sorted((folder / "out/train").rglob("*.jsonl"))
    return {file.parent.name: [json.loads(line) for line in file.read_text().splitlines()] for file in files}


EXPECTED = {
    name: [{"text": f"Mail {n}:\nwrite to <mail>.\n", "subject": f"{name} {n}"} for n in range(12)]
    for name in NUM_MAILS
}
EXPECTED_LINES = [f"Mail {n}: write to <mail>." for n in range(12)]


def test_from_the_command_line(environment, mails):
    options = ["--backend", "processes", "--workers", "2"]
    environment.gristmill("run", "recipe.yaml", *options, cwd=mails)
    assert records(mails) == EXPECTED
    manifest = json.loads((mails / "out/manifest.json").read_text())
    used = ["reader mbox", "step redact", "step balance", "barrier balance"]
    assert manifest["plugins"] == dict.fromkeys(used, "gristmill-mail 1.0.0")
    accounts = {account["step"]: account for account in manifest["books"]["news"]}
    assert '"addresses": 30' in json.dumps(accounts["redact"])
    assert (accounts["balance"]["in"], accounts["balance"]["out"]) == (30, 12)
    environment.gristmill("export", "out", "--to", "lines", "--path", "lines/x", *options, cwd=mails)
    assert [file.read_text().splitlines() for file in sorted((mails / "lines").iterdir())] == [EXPECTED_LINES] * 2
    assert "up to date" in environment.gristmill("run", "recipe.yaml", *options, cwd=mails).stdout


@pytest.mark.full
def test_from_python(environment, mails):
    ran = environment.run("-c", PROGRAM, cwd=mails)
    assert ran.stdout.splitlines()[-1] == "False ['x_train-00000.txt', 'x_train-00001.txt']"
    assert records(mails) == EXPECTED
    again = environment.run("-c", PROGRAM.replace('"lines/x"', '"more/x"'), cwd=mails)
    assert again.stdout.startswith("True")
    assert "up to date" in environment.gristmill("run", "recipe.yaml", cwd=mails).stdout  # the same recipe


@pytest.mark.full
def test_doctor_lists_it_as_the_page_shows(environment):
    facts = json.loads(environment.gristmill("doctor", "--json").stdout)
    provided = "barrier balance, export lines, reader mbox, step balance, step redact"
    assert facts["plugins"]["gristmill-mail 1.0.0"] == provided
    assert f"  gristmill-mail 1.0.0  {provided}\n" in PAGE.read_text()


def test_the_page_quotes_the_package():
    files = [file.read_text() for file in [PACKAGE / "pyproject.toml", *PACKAGE.rglob("*.py")]]
    quoted = [block for language, block in BLOCK.findall(PAGE.read_text()) if language in ("toml", "py")]
    assert len(quoted) == 7
    assert [block for block in quoted if not any(block in file for file in files)] == []


@pytest.mark.full
@pytest.mark.parametrize("arguments", [["-c", "import gristmill"], ["-m", "gristmill", "--help"]])
def test_nothing_of_it_is_imported_before_it_is_used(environment, arguments):
    ran = environment.run("-X", "importtime", *arguments)
    assert "gristmill_mail" not in ran.stderr
    assert "importlib.metadata" not in ran.stderr


@pytest.mark.full
def test_editable_install_edited_then_uninstalled(tmp_path, mails):
    pytest.importorskip("setuptools", reason="the example package is built with setuptools")
    sources = shutil.copytree(PACKAGE, tmp_path / "package")
    environment = Environment(tmp_path / "environment")
    environment.install("--editable", sources)
    run = ["run", "recipe.yaml", "--backend", "serial"]
    environment.gristmill(*run, cwd=mails)
    assert records(mails) == EXPECTED
    assert "up to date" in environment.gristmill(*run, cwd=mails).stdout

    module = sources / "src/gristmill_mail/mbox.py"
    module.write_text(module.read_text().replace('"text": body', '"text": "> " + body'))
    refused = environment.gristmill(*run, cwd=mails, check=False)
    assert refused.returncode == 1
    assert "holds a finished dataset" in refused.stderr
    environment.gristmill(*run, "--update", cwd=mails)
    assert records(mails)["news"][0]["text"] == "> Mail 0:\nwrite to <mail>.\n"

    environment.uninstall("gristmill-mail")
    missing = environment.gristmill(*run, cwd=mails, check=False)
    assert missing.returncode == 2
    assert "mbox" in missing.stderr
    assert "comes from package gristmill-mail 1.0.0, which is not installed" in " ".join(missing.stderr.split())
    assert "pip install gristmill-mail==1.0.0" in " ".join(missing.stderr.split())
