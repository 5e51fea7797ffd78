"""Processes that begin with torch imported: a server has imported it, and forks for each of them.

To start Python and to import torch takes three seconds of a processor, a fork some milliseconds. The package itself is
imported in the new process, which then runs what ``python`` would run with the same words. A traceback begins with the
server's frames; else a script sees no difference but ``sys.orig_argv`` and the modules of torch.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: What Python, torch and their libraries read when they are loaded: a process with other values is started anew.
READ_AT_START = ("ATEN_", "KMP_", "LD_", "MALLOC_", "OMP_", "PYTHON", "TMPDIR", "TORCH")


def environment_with(**more: str) -> dict[str, str]:
    """Returns the environment of this process with one thread for torch, and with these variables."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def run(
    words: Sequence[str],
    *,
    cwd: Path | None,
    environment: dict[str, str],
    timeout: float = 180,
    with_dynamo: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs ``python`` with these words: in a forked process if it would begin in the same way. If ``with_dynamo``, it
    begins with Dynamo imported, which each optimizer imports, in two seconds."""
    usual, command = environment_with(), [sys.executable, *words]
    read = {name for name in environment if name.startswith(READ_AT_START)} - {"PYTHONPATH"}
    is_begun = words[0] in ("-c", "-m") or words[0].endswith(".py")
    if not is_begun or any(environment[name] != usual.get(name) for name in read):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd, env=environment
        )
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        request = {"words": words, "cwd": str(cwd or Path.cwd()), "environment": environment, "files": files}
        status = _servers["torch._dynamo" if with_dynamo else "torch"].run(request, timeout)
        printed = [Path(one).read_text("utf-8", "backslashreplace") for one in files]
    return subprocess.CompletedProcess(command, status, *printed)


_one_at_a_time = threading.Lock()


def _run_command(
    command: Sequence[str], *, env: dict[str, str], stdout: Any, **_: Any
) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in env.items() if name != "PYTHONHASHSEED"}
    with _one_at_a_time:
        done = run(command[1:], cwd=None, environment={**given, "OMP_NUM_THREADS": "1"}, with_dynamo=True)
    done.stdout += done.stderr
    if stdout is not subprocess.PIPE:
        stdout.write(done.stdout.encode())
    return done


#: Stands for the module :mod:`subprocess` where a command of the package starts Python, with both streams in one.
IN_PLACE_OF_SUBPROCESS = types.SimpleNamespace(run=_run_command, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT)


class _Server:
    """The process that forks: one child at a time."""

    def __init__(self, module: str) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._module = module

    def run(self, request: dict[str, Any], timeout: float) -> int:
        """Returns the exit status of a child that is made as the request says."""
        process = self._process = self._process or subprocess.Popen(
            [sys.executable, __file__, self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=environment_with(),
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(request), file=process.stdin, flush=True)
        if not select.select([process.stdout], [], [], timeout)[0]:
            self._process = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise subprocess.TimeoutExpired(request["words"], timeout)
        return int(process.stdout.readline())


#: By the module that is imported.
_servers = {module: _Server(module) for module in ("torch", "torch._dynamo")}


def _serve() -> None:
    """Forks for each line of the standard input. Returns in a child that has run, and at the end of the input."""
    importlib.import_module(sys.argv[1])  # it is in each child then
    gc.freeze()  # for the same reason: no child looks at these objects when it ends
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run_here(**json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run_here(words: list[str], cwd: str, environment: dict[str, str], files: list[str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdin = os.fdopen(0)
    first, *others = words
    sys.argv = [first, *others[first in ("-c", "-m") :]]
    begin = {"-c": "", "-m": cwd}.get(first, os.path.dirname(first))
    sys.path[:1] = [begin, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    main: Any = types.ModuleType("__main__")
    main.__builtins__ = builtins
    held, sys.modules["__main__"] = sys.modules["__main__"], main
    if "__annotations__" in vars(held):
        main.__annotations__ = {}
    if first == "-m":
        runpy._run_module_as_main(others[0])
    elif first == "-c":
        exec(compile(others[0], "<string>", "exec"), vars(main))
    else:
        main.__file__ = first
        exec(compile(Path(first).read_bytes(), first, "exec"), vars(main))
    del held  # so long this module's own code ran


if __name__ == "__main__":
    _serve()
