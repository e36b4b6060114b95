import errno
import io
import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import click
import pytest
from gristmill_testing.watching import wait_until

from gristmill import __version__
from gristmill.cli import main as main_module
from gristmill.core.errors import GristmillError, UsageError


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command line in this process; gives exit code, standard output and standard error."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_info:
            main_module.main(arguments)
        output = capsys.readouterr()
        return exit_info.value.code, output.out, output.err

    return run


@pytest.fixture
def command_that_raises(monkeypatch):
    """Adds a command `fail` to the table that raises what it is given."""

    def add(error):
        @click.command()
        def command():
            raise error

        module = types.ModuleType("gristmill_command_that_raises")
        module.fail_command = command
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(main_module.COMMANDS, "fail", (module.__name__, "Fails."))

    return add


def test_help_lists_every_command_with_its_summary(run):
    code, out, _ = run("--help")
    assert code == 0
    for name, (_, summary) in main_module.COMMANDS.items():
        assert name in out
        assert summary in out


def test_no_arguments_shows_help_as_wrong_use(run):
    code, _, err = run()
    assert code == 2
    assert "Maintain:" in err


@pytest.mark.every_case
@pytest.mark.parametrize("name", main_module.COMMANDS)
def test_every_command_has_help_with_an_example(run, name):
    code, out, _ = run(name, "--help")
    assert code == 0
    assert f"gristmill {name}" in out.split("Example")[1]


def test_version(run):
    assert run("--version")[:2] == (0, f"gristmill {__version__}\n")


def test_mistyped_command_suggests_the_nearest(run):
    code, _, err = run("dmeo")
    assert code == 2
    assert "'dmeo'" in err
    assert "did you mean 'demo'?" in err


def test_unknown_command_points_to_help(run):
    code, _, err = run("zzzzzz")
    assert code == 2
    assert "gristmill --help" in err


@pytest.mark.parametrize("arguments", [("--no-such-option",), ("demo", "--no-such-option"), ("demo", "--workers", "0")])
def test_wrong_options_are_wrong_use(run, arguments):
    code, _, err = run(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert "--help" in err


@pytest.mark.parametrize(("kind", "code"), [(GristmillError, 1), (UsageError, 2)])
def test_error_is_shown_with_notes_and_help(run, command_that_raises, kind, code):
    error = kind("row of 9312 tokens does not fit", help="raise row_length", row=3)
    error.add_note("in corpus.jsonl, byte 17\nand one more line")
    command_that_raises(error)
    expected = (
        "error: row of 9312 tokens does not fit\n"
        "  note: in corpus.jsonl, byte 17\n"
        "        and one more line\n"
        "  help: raise row_length\n"
    )
    assert run("fail") == (code, "", expected)


def test_errors_of_the_system_say_what_where_and_what_to_do(run, command_that_raises):
    error = OSError(errno.ENOSPC, "No space left on device")
    error.add_note("while writing /data/out/shard")
    error.add_note("gristmill: item 3: Task(...)")
    error.add_note("in the worker:\nTraceback (most recent call last): ...")
    command_that_raises(error)
    code, out, err = run("fail")
    assert (code, out) == (1, "")
    assert err.splitlines()[:2] == ["error: No space left on device", "  note: while writing /data/out/shard"]
    assert "same command" in err
    assert "Traceback" not in err


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m gristmill --help | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


def test_interrupt_exits_130(run, command_that_raises):
    command_that_raises(KeyboardInterrupt())
    code, out, err = run("fail")
    assert (code, out) == (130, "")
    assert "interrupted" in err
    assert "Traceback" not in err


SLEEPER = """
import sys, time, types, click
from gristmill.cli import main
@click.command()
def command():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
sys.modules["sleeper"] = types.SimpleNamespace(sleep_command=command)
main.COMMANDS["sleep"] = ("sleeper", "Sleeps.")
main.main(["sleep"])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_runs_clean_up_and_sets_the_exit_code(number, code):
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=240)
    assert process.returncode == code
    assert out == "cleaned up\n"
    assert len(err.splitlines()) <= 2
    assert "Traceback" not in err


@pytest.mark.parametrize("is_ignored", [False, True], ids=["usual", "ignored"])
def test_an_interrupt_before_the_command_is_imported_is_no_traceback(tmp_path, is_ignored):
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit(7)\n")
    ended = subprocess.run(
        [sys.executable, "-m", "gristmill", "--help"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if is_ignored else signal.SIG_DFL),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == ((7, b"") if is_ignored else (130, b"interrupted\n"))


def test_runs_as_a_module():
    run = subprocess.run([sys.executable, "-m", "gristmill", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"gristmill {__version__}\n"


@pytest.mark.parametrize("words", [("plan", "{}"), ("explain", "{}", "0"), ("stream", "{}"), ("plan", "{}", "--json")])
def test_errors_repeat_no_secret_of_a_command(run, words):
    code, out, err = run(*(word.format("s3://key:se/cret@bucket/x") for word in words))
    assert code == 2
    assert "s3://***@bucket/x" in err
    assert "cret" not in out + err


def test_errors_of_json_commands_are_json(gristmill, tmp_path):
    for arguments, code in (
        (("inspect", tmp_path / "nothing", "--json"), 2),
        (("run", tmp_path / "nothing.yaml", "--json"), 2),
        (("run", "--json"), 2),
        (("inspect", tmp_path, "--jsn", "--json"), 2),
    ):
        done = gristmill(*arguments, fails=code)
        found = json.loads(done.out)
        assert found["exit_code"] == code
        assert found["error"]["message"]
        assert found["error"]["message"].splitlines()[0] in done.err
        assert found["error"]["type"]
    assert gristmill("inspect", tmp_path / "nothing", fails=2).out == ""


def test_an_error_never_fills_the_screen(gristmill, tmp_path):
    (tmp_path / "recipe.yaml").write_text(f"output: out\nsources: {{a: {{read: a.jsonl}}}}\n{'x' * 6000}: 1\n")
    err = gristmill("plan", tmp_path / "recipe.yaml", folder=tmp_path, fails=2).err
    assert all(len(line) <= 1000 for line in err.splitlines())
    assert "characters" in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_choices(shell, tmp_path):
    environment = {**os.environ, "_GRISTMILL_COMPLETE": f"{shell}_source"}
    command = [str(Path(sys.executable).parent / "gristmill")]
    script = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "_GRISTMILL_COMPLETE" in script
    for words, expected in (("gristmill ver", "verify"), ("gristmill run --backend thr", "threads")):
        last = words.split()[-1]
        number = str(len(words.split()) - 1)
        given = {"COMP_WORDS": words, "COMP_CWORD": last if shell == "fish" else number}
        environment = {**os.environ, "_GRISTMILL_COMPLETE": f"{shell}_complete", **given}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert expected in done.stdout


def test_choices_are_checked_with_the_nearest_one_named(gristmill, tmp_path):
    for arguments, meant in (
        (("run", "r.yaml", "--backend", "proceses"), "processes"),
        (("export", "out", "--to", "megatrn"), "megatron"),
        (("dedup", "a", "b", "--verify", "txt"), "text"),
        (("template", "check", "t", "f", "--train-on", "asistant"), "assistant"),
    ):
        assert meant in gristmill(*arguments, folder=tmp_path, fails=2).err.split("Did you mean")[1]


@pytest.mark.parametrize("shows", [True, False])
def test_a_slow_start_is_named_on_a_terminal_and_erased(monkeypatch, shows):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(main_module, "_QUIET_SECONDS", 0.0)
    with main_module._show_loading(shows=shows):
        if shows:
            wait_until(lambda: "starting" in terminal.getvalue())
    assert terminal.getvalue().endswith("\r\x1b[K") == shows
    assert bool(terminal.getvalue()) == shows


LOSES_SIGNAL = """
import os, signal, sys, time, weakref
import click
from gristmill.cli import main as main_module

class Watched: pass

def send_signal(_):
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(1000): pass  # the handler runs here, where Python drops what it raises

def lose_signal(*_, **__):
    watched = Watched()
    reference = weakref.ref(watched, send_signal)
    del watched
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        raise click.Abort

main_module.command_line.main = lose_signal
main_module.main([])
"""


@pytest.mark.full
@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_that_python_drops_arrives_all_the_same(number, word):
    command = [sys.executable, "-c", LOSES_SIGNAL, str(int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (128 + number, word)


HIDES_SIGNAL = """
import os, signal, sys
from pathlib import Path
from gristmill.cli import main as main_module
from gristmill import parallel_map

Path("hides.py").write_text('''
import os, sys
try:
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(1000): pass
except BaseException as error:  # as numpy and modules of Cython do
    raise ImportError("failed to import") from error
''')
sys.path.insert(0, ".")

def send_signal(_):
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(1000): pass

def in_import(*_, **__):
    import hides
    signal.pause()

def in_task(*_, **__):
    parallel_map(send_signal, [1], backend="serial", progress=False)
    signal.pause()

def in_other_error(*_, **__):
    try:
        send_signal(1)
    except BaseException as error:
        raise OSError("no such file") from error

main_module.command_line.main = globals()[sys.argv[2]]
main_module.main([])
"""


@pytest.mark.full
@pytest.mark.parametrize("place", ["in_import", "in_task", "in_other_error"])
@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_is_never_taken_for_an_error(tmp_path, number, word, place):
    command = [sys.executable, "-c", HIDES_SIGNAL, str(int(number)), place]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stderr.strip()) == (128 + number, word)


@pytest.mark.parametrize("group", ["classifier", "stream", "template", "tokenizer"])
def test_summaries_of_subcommands_are_whole(gristmill, group):
    listed = gristmill(group, "--help").out.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


STOPPED_AT_EACH_MOMENT = """
import os, signal, sys
from gristmill.cli import main as main_module
from gristmill.storage.parallel_files import PreallocatedFiles

folder, moment, is_stopped = sys.argv[1], 0, True
stops = main_module._Stops()
signal.signal(signal.SIGTERM, stops.handle)

def send_signal(frame, event, _):
    global num_left
    frame.f_trace_opcodes = True
    if event == "opcode" and frame.f_code.co_name in ("__enter__", "__exit__"):
        num_left -= 1
        if num_left == 0:
            signal.raise_signal(signal.SIGTERM)
    return send_signal

while is_stopped:
    moment = num_left = moment + 1
    stops.number = None
    try:
        sys.settrace(send_signal)
        with PreallocatedFiles(folder + "/x"):
            pass
        sys.settrace(None)
        is_stopped = num_left <= 0
        if is_stopped:
            signal.pause()  # for the signal, which is sent again
    except main_module.Stopped:
        sys.settrace(None)
    assert os.listdir(folder) == [], moment
print(moment)
"""


@pytest.mark.full
def test_a_signal_at_any_moment_leaves_no_lock(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_EACH_MOMENT, tmp_path], capture_output=True, text=True, timeout=240
    )
    assert int(done.stdout or 0) > 50, done.stderr


HOSTILE = "\x1b[2J\x07\x9b31m\u202e"


@pytest.fixture(scope="module")
def hostile_dataset(tmp_path_factory):
    """A dataset whose inputs and fields have names and texts that would control a terminal."""
    folder = tmp_path_factory.mktemp("hostile")
    records = [{"text": f"{HOSTILE} text {number} " * 4, f"f{HOSTILE}": HOSTILE} for number in range(12)]
    lines = [json.dumps(record) for record in records]
    (folder / f"a{HOSTILE}.jsonl").write_text("\n".join([*lines, lines[0], HOSTILE]))
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "{sources: {a: {read: 'a*.jsonl'}}, steps: [length: {min_chars: 40}, deduplicate: {kind: exact}], output: out}"
    )
    return folder


def test_a_recipe_comes_from_standard_input(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "one"}')
    recipe = b"{sources: {a: {read: a.jsonl}}, output: out}"
    for data, code in ((recipe, 0), (recipe + b" " * (16 << 20), 2)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert run("plan", "-")[0] == code


@pytest.mark.parametrize(
    "words",
    [
        "plan recipe.yaml",
        "run recipe.yaml --backend serial",
        "run recipe.yaml",
        "inspect out",
        "inspect out --quarantine",
        "inspect out --details",
        "trace out 0",
        "trace out 0 --removed",
        "trace out 99",
        "trace out a:a{hostile}.jsonl@0",
        "explain recipe.yaml a{hostile}.jsonl",
        "explain recipe.yaml out",
        "verify out",
        "status out",
        "tune recipe.yaml",
        "diff out out",
        "stream check out",
        "export out megatron x",
        "clean out",
        "report out",
        "doctor out",
        "init {hostile}/{hostile}",
        "tokenizer check {hostile}",
        "template check {hostile}",
        "classifier train {hostile}",
        "mix {hostile}",
        "bench {hostile}.yaml",
        "dedup {hostile}",
        "view {hostile}",
        "verify {hostile}",
        "run {hostile}.yaml",
        "run recipe.yaml --set sources.a.read={hostile}",
        "run recipe.yaml --set {hostile}=1",
        "{hostile}",
    ],
)
def test_no_command_prints_what_controls_a_terminal(hostile_dataset, run, monkeypatch, words):
    monkeypatch.chdir(hostile_dataset)
    if not (hostile_dataset / "out").exists():
        run("run", "recipe.yaml", "--backend", "serial")
    _, out, err = run(*(word.format(hostile=HOSTILE) for word in words.split()))
    assert out or err
    for shown in (out, err):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*shown}, shown
