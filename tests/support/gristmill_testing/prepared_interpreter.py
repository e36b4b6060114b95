"""A process that has imported what programs need, and becomes one of them: each call forks a fresh copy of it.

A new interpreter spends 0.3 to 2 s of CPU time on imports, which is most of what a short command takes. What is forked
has arguments, an environment, a folder, output and an end of its own, as a new interpreter does. That programs also
import what they need by themselves is seen by the tests that start interpreters (`tests/public`, `tests/golden`).
"""

import atexit
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

from gristmill_testing.watching import HANG_SECONDS

_SUPPORT = str(Path(__file__).parents[1])


class PreparedInterpreter:
    """Runs programs in forks of one process that has imported `modules`."""

    def __init__(self, modules, environment=None):
        self._connection, theirs = socket.socketpair()
        self._connection.settimeout(HANG_SECONDS)
        code = f"import sys; sys.path[0] = {_SUPPORT!r}; from {__name__} import serve; serve(*sys.argv[1:])"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )

    def run(self, *words, folder=None, environment=None):
        """Run `-m module …` or `script.py …` to its end, as `subprocess.run([sys.executable, *words])` does."""
        request = {
            "words": [os.fspath(word) for word in words],
            "folder": os.fspath(folder or os.getcwd()),
            "environment": dict(os.environ if environment is None else environment),
        }
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            message = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self._connection, [message], [out.fileno(), err.fileno()])
            self._connection.sendall(message[sent:])
            answer = self._connection.recv(64)
            assert answer, "the prepared interpreter has ended"
            texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
        return SimpleNamespace(returncode=int(answer), stdout=texts[0], stderr=texts[1])

    def close(self):
        self._connection.close()
        self._process.wait(HANG_SECONDS)


def serve(fd, *modules):
    """Fork for each request, until nobody is there to make one."""
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()
    connection = socket.socket(fileno=int(fd))
    while True:
        message, fds, _, _ = socket.recv_fds(connection, 1 << 20, 2)
        while message and not message.endswith(b"\n"):
            message += connection.recv(1 << 20)
        if not message:
            sys.exit()
        process = os.fork()
        if not process:
            connection.close()
            _run_to_the_end(_become(json.loads(message), fds))
        for received in fds:
            os.close(received)
        connection.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def _run_to_the_end(program):
    """Run the main program and end this process as Python does, without taking all modules apart: that takes 0.3 s."""
    code = 0
    try:
        program()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _become(request, fds):
    """Take over what a request says, and return its main program."""
    for received, standard in zip(fds, (1, 2), strict=True):
        os.dup2(received, standard)
        os.close(received)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    first, *arguments = request["words"]
    if first == "-m":
        module, *arguments = arguments
        sys.path[0] = request["folder"]
        sys.argv = ["-m", *arguments]
        return lambda: runpy.run_module(module, run_name="__main__", alter_sys=True)
    path = Path(first).resolve()
    sys.path[0] = str(path.parent)
    sys.argv = [first, *arguments]
    main = sys.modules["__main__"] = ModuleType("__main__")  # not by `runpy`, which would change the arguments
    main.__file__ = str(path)
    return lambda: exec(compile(path.read_bytes(), path, "exec"), vars(main))
