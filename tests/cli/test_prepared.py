"""What is forked from the prepared interpreter is a program of its own, as if Python had been started for it."""

from gristmill_testing.scripts import run, write

SCRIPT = """
    import atexit, os, sys, threading

    atexit.register(print, "exit")
    threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
    print(sys.argv, __name__, __file__, sys.modules["__main__"].__dict__ is globals())
    print(os.getcwd(), sys.path[0], os.environ["PREPARED"], "gristmill_testing" in sys.path[0])
    print("to stderr", file=sys.stderr)
    if sys.argv[1] == "raise":
        raise ValueError("of the script")
    sys.exit(None if sys.argv[1] == "none" else int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1])
"""


def test_programs_are_those_of_a_new_interpreter(prepared, tmp_path, monkeypatch):
    write(tmp_path / "script.py", SCRIPT)
    monkeypatch.setenv("PREPARED", "yes")
    for end in ("none", "0", "3", "words", "raise"):
        forked = prepared.run("script.py", end, folder=tmp_path)
        started = run("script.py", end, cwd=tmp_path)
        assert (forked.returncode, forked.stdout.splitlines()) == (started.returncode, started.stdout.splitlines())
        assert forked.stderr.splitlines()[-1] == started.stderr.splitlines()[-1]


def test_one_program_leaves_nothing_to_the_next(prepared, tmp_path):
    write(tmp_path / "leave.py", "import os, sys; sys.left = os.environ['LEFT'] = 'left'; os.chdir('/')")
    write(tmp_path / "look.py", "import os, sys; print(hasattr(sys, 'left'), 'LEFT' in os.environ, os.getcwd())")
    prepared.run("leave.py", folder=tmp_path)
    assert prepared.run("look.py", folder=tmp_path).stdout.split() == ["False", "False", str(tmp_path)]
