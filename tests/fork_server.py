"""Starts Python programs as processes of their own that need not import everything anew.

Thousands of processes take part in the tests, and most of what a short one costs is starting the
interpreter and importing the same modules once more. Here one process imports them, once per test
run, and every program is a fork of it, with a folder, an environment and arguments of its own, as
in servers that load an application before they fork. All programs of a run have one seed of hashes,
unless ``PYTHONHASHSEED`` gives one its own.

:func:`start` and :func:`run` take what ``subprocess.Popen`` and ``subprocess.run`` take and return
the same. The program is a child of the caller, with a process id, signals, files and an exit code
as always. Whatever cannot be done so is done by ``subprocess``: options of the interpreter,
variables that it reads while it starts, a ``preexec_fn``, systems other than Linux. A test whose
subject is how a process starts, or what it imports, uses ``subprocess`` itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import importlib.util
import inspect
import io
import json
import linecache
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, overload

LIBRARIES = (
    *("argparse", "asyncio", "base64", "concurrent.futures.thread", "csv", "ctypes", "decimal"),
    *("email.parser", "hashlib", "http.client", "importlib.metadata", "importlib.resources"),
    *("ipaddress", "logging.handlers", "multiprocessing.util", "platform", "secrets", "shlex"),
    *("sqlite3", "ssl", "statistics", "tempfile", "tomllib", "urllib.request", "uuid", "zoneinfo"),
    *("cronsim", "httptools", "msgspec", "opentelemetry.trace", "pydantic", "rfc8785", "typer"),
    *("encodings.idna", "encodings.utf_8_sig", "opentelemetry._logs", "psycopg", "redis.asyncio"),
    *("sqlalchemy.orm", "sqlalchemy.dialects.sqlite"),
)
"""What most programs of the tests import."""
ERGON = (
    *("app.diagnostics.check", "app.jobs", "app.move.run", "app.node", "app.worker"),
    *("boundary.client", "boundary.factstore.sqlite", "boundary.http.client", "boundary.node.app"),
    *(
        "boundary.node.node",
        "storage.objectstore.filesystem",
        "cli.boundary",
        "cli.commands",
    ),
    *("cli.boundary_consumers", "cli.boundary_facts", "cli.boundary_node", "cli.boundary_objects"),
    *("cli.boundary_serve", "cli.dlq", "cli.enqueue", "cli.jobs", "cli.move", "cli.db"),
    *("cli.worker", "executor", "jobs.stores.sqlite", "jobs.worker"),
    *("app.application", "app.run_app", "cli.boundary_outbox", "jobs.stores.postgres"),
    *("jobs.stores.redis", "jobs.stores.sql.schema", "providers.stores.sqlite", "testing.clock"),
    *("providers.stores.database", "storage.journal.sqlite", "telemetry.journal"),
)
"""What most programs import; servers, brokers and telemetry of others come when needed."""
WEB = ("fastapi", "jinja2", "uvicorn", "ergon_framework.web.routes")
NAMED: Mapping[str, tuple[str, ...]] = {
    "postgresql:": (
        *("alembic.command", "sqlalchemy.dialects.postgresql.psycopg"),
        "ergon_framework.boundary.factstore.postgres",
        "ergon_framework.providers.stores.postgres",
    ),
    "nats:": ("ergon_framework.boundary.factstore.nats",),
}
"""What is imported before the first program that a word or a variable of which begins so."""
ASKED: Mapping[str, tuple[str, ...]] = {
    "move": ("alembic.command", "ergon_framework.app.move.project"),
    "run": ("ergon_framework.app.run_parts", "ergon_framework.cli.run"),
    "server": WEB,
    "serve": WEB,
}
"""The same for programs one word of which is this."""
Words = Sequence[str | os.PathLike[str]]
ISOLATED = ["-I", "-S", "-c"]
UNDERSTOOD = frozenset({"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"})
"""Variables of the interpreter that are followed here as they would be at its start."""
_READ_AT_THE_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OPENSSL_")
_SET_CHILD_SUBREAPER = 36
_INHERITED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


@overload
def start(words: Words, *, text: Literal[True], **options: Any) -> subprocess.Popen[str]: ...
@overload
def start(words: Words, **options: Any) -> subprocess.Popen[bytes]: ...
def start(
    words: Words, *, imports: Sequence[str] = (), forks_children: bool = False, **options: Any
) -> subprocess.Popen[Any]:
    """Start a Python program, as ``subprocess.Popen`` would.

    ``imports`` are modules that the program needs and most do not: they are imported once, before
    the first program that names them, and must start no thread. ``forks_children`` has the parts
    and executors forked, too, that the program starts.
    """
    return _Forked(words, imports, forks_children, **options)


@overload
def run(
    words: Words, *, text: Literal[True], **options: Any
) -> subprocess.CompletedProcess[str]: ...
@overload
def run(words: Words, **options: Any) -> subprocess.CompletedProcess[bytes]: ...
def run(
    words: Words,
    *,
    input: Any = None,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a Python program to its end, as ``subprocess.run`` would."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with start(words, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args, output, errors)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


# ---- on the side of the tests --------------------------------------------------------------------


class _Forked(subprocess.Popen[Any]):
    """A process that the server forks where it can; everything after its start is inherited."""

    def __init__(
        self, words: Words, imports: Sequence[str], forks_children: bool, **options: Any
    ) -> None:
        self._imports, self._forks_children = imports, forks_children
        super().__init__(words, **options)

    def _execute_child(self, *arguments: Any) -> None:
        given = dict(zip(_parameters(), arguments, strict=True))
        environ = dict(os.environ if given["env"] is None else given["env"])
        server = self._server() if _is_plain(given, environ) else None
        if server is None:
            super()._execute_child(*arguments)  # type: ignore[misc]  # not in its stubs
            return
        words = [os.fspath(word) for word in given["args"]][1:]
        handed = [int(number) for number in given["pass_fds"]]
        request = {
            "words": words,
            "imports": [*self._imports, *_libraries_of(words, environ)],
            "environ": environ,
            "folder": os.fspath(given["cwd"] or Path.cwd()),
            "is_session": given["start_new_session"],
            "group": 0 if given["process_group"] == 0 else os.getpgrp(),
            "numbers": [0, 1, 2, *handed],
            "starts_others": self._forks_children,
        }
        pipes = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [number if pipe == -1 else pipe for number, pipe in enumerate(pipes)]
        self.pid = server.fork(request, [*streams, *handed])
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in ends))  # type: ignore[attr-defined]

    def _server(self) -> _Server | None:
        return _server()


class _ForkedChild(_Forked):
    """A process that the product starts: forked if the process that starts it has a server."""

    def __init__(self, words: Words, **options: Any) -> None:
        is_part = [*words[1:4]] != ISOLATED  # which starts others as the program does
        super().__init__(words, (), is_part, **options)

    def _server(self) -> _Server | None:
        return _running.get(os.getpid())


def fork_children() -> None:
    """Have the programs forked that the product starts: parts of a program, and executors."""
    instead = ModuleType("subprocess")
    vars(instead).update(vars(subprocess), Popen=_ForkedChild)
    for name in ("app.processes", "jobs.child_process", "jobs.watchdog"):
        vars(importlib.import_module(f"ergon_framework.{name}"))["subprocess"] = instead


@functools.cache
def _parameters() -> tuple[str, ...]:
    """The names of what ``subprocess`` hands to the method that makes the process."""
    method: Any = vars(subprocess.Popen)["_execute_child"]
    return tuple(inspect.signature(method).parameters)[1:]


def _is_plain(given: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether it is a Python program, started without anything unusual."""
    unusual = ("executable", "preexec_fn", "shell")
    unset = {"gid": None, "gids": None, "uid": None, "umask": -1}
    words = given["args"]
    return (
        not isinstance(words, str | bytes | os.PathLike)
        and len(words) > 1
        and words[0] == sys.executable
        and _is_program(words[1:], given["cwd"] or "")
        and (_is_understood(environ) or [*words[1:4]] == ISOLATED)
        and given.get("process_group", -1) in (-1, 0)
        and not any(given[name] for name in unusual)
        and all(given.get(name, usual) == usual for name, usual in unset.items())
        and not any(signal.getsignal(number) == signal.SIG_IGN for number in _INHERITED)
        and (given["cwd"] is None or Path(given["cwd"]).is_dir())
    )


def _is_program(words: Words, folder: str | os.PathLike[str]) -> bool:
    """Whether Python runs a program when it is given these words, with no more options."""
    return (
        words[0] in ("-m", "-c")
        or [*words[:3]] == ISOLATED
        or Path(folder, os.fspath(words[0])).is_file()
    ) and [*words[:2]] != ["-m", "pytest"]  # which rewrites what is imported


def _libraries_of(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """What such a program imports beside what most do: a guess, which costs only time if wrong."""
    texts = (*words, *environ.values())
    begun = (NAMED[name] for name in NAMED if any(text.startswith(name) for text in texts))
    asked = (ASKED[word] for word in words if word in ASKED)
    return [module for modules in (*begun, *asked) for module in modules]


def _is_understood(environ: Mapping[str, str]) -> bool:
    """Whether the interpreter would read the same from it as the server's did from its own.

    A library that is preloaded is set up while a process starts, for that process.
    """
    if "LD_PRELOAD" in environ:
        return False
    folders = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    return _read_at_the_start(environ) == _AT_THE_START and not any(
        Path(folder, "sitecustomize.py").exists() for folder in folders
    )


def _read_at_the_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_READ_AT_THE_START) and name not in UNDERSTOOD
    }


_AT_THE_START = _read_at_the_start(os.environ)
"""What the server reads: a test may change the variables of this process for a while."""


@dataclass
class _Server:
    """The process that forks, and the way to it."""

    owner: int
    control: socket.socket
    became: Any
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fork(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """A new child of this process that runs the program; its process id.

        Its parent ends at once. Linux gives an orphan to the nearest of its ancestors that asks for
        them, and this process asks for as long as that takes.
        """
        text = json.dumps(request).encode()
        with self.lock:
            _adopt(True)
            try:
                socket.send_fds(self.control, [len(text).to_bytes(8, "big")], [*streams])
                self.control.sendall(text)
                pid = int.from_bytes(_received(self.control, 8), "big")
            finally:
                _adopt(False)
        assert pid, "the server of forks has ended"
        return pid


_MARK = "is_fork_of_the_tests"
"""What ``sys`` has in a process that was forked here."""
_lock = threading.Lock()
_running: dict[int, _Server | None] = {}
"""By process: a fork of the tests has none yet."""


def _server() -> _Server | None:
    """The server of this process, started by whoever needs it first."""
    with _lock:
        if os.getpid() not in _running:
            _running.clear()
            _running[os.getpid()] = _started() if sys.platform == "linux" else None
        found = _running[os.getpid()]
    return found if found is None or found.became == os.geteuid() else None


def _started() -> _Server:
    here, there = socket.socketpair()
    read = _READ_AT_THE_START
    others = {name: value for name, value in os.environ.items() if not name.startswith(read)}
    kept = {name: value for name, value in others.items() if not name.startswith("ERGON_")}
    environ = kept | _AT_THE_START
    with there:
        process = subprocess.Popen(  # noqa: S603 - this file
            [sys.executable, __file__, str(there.fileno())],
            pass_fds=[there.fileno()],
            env=environ,
            stdin=subprocess.DEVNULL,
        )
    atexit.register(_end, process, here)
    return _Server(os.getpid(), here, os.geteuid())


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.wait()


def serve_own_children() -> None:
    """Let a program that is a fork itself start its own programs in the same way.

    It must be called first in the program, while the process has one thread and has changed
    nothing: what is forked from then on is a copy of the process as it is now.
    """
    if _MARK not in vars(sys):
        return
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        here.close()
        del sys.path[0]  # the folder of the program that called
        with there, contextlib.suppress(KeyboardInterrupt):
            program = serve(there)
        if program is not None:
            program()
        sys.exit()  # through the frames of the caller, which has begun nothing yet
    there.close()
    _running[os.getpid()] = _Server(os.getpid(), here, os.geteuid())
    atexit.register(_end_fork, pid, here)


def _end_fork(pid: int, control: socket.socket) -> None:
    control.close()
    os.waitpid(pid, 0)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _adopt(is_wanted: bool) -> None:
    if _libc().prctl(_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _received(control: socket.socket, size: int) -> bytes:
    """So many bytes; none if the other side has ended."""
    found = b""
    while len(found) < size:
        more = control.recv(size - len(found))
        if not more:
            return b""
        found += more
    return found


# ---- on the side of the server -------------------------------------------------------------------


def serve(control: socket.socket) -> Callable[[], None] | None:
    """Fork as often as asked. Returns in each child, with its program, and at the end."""
    while True:
        header, streams, _, _ = socket.recv_fds(control, 8, 32)
        header += _received(control, 8 - len(header)) if header else b""
        if not header:
            return None
        request = json.loads(_received(control, int.from_bytes(header, "big")))
        _import(request["imports"])
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            parent = os.getpid()
            if os.fork() == 0:
                _join(request)
                os.write(writer, os.getpid().to_bytes(8, "big"))
                os.close(reader)
                os.close(writer)
                control.close()
                while os.getppid() == parent:
                    time.sleep(0.0002)  # until the parent is the one that asked
                return functools.partial(_become, request, streams)
            os._exit(0)
        os.close(writer)
        os.waitpid(between, 0)
        control.sendall(os.read(reader, 8).ljust(8, b"\0"))
        for descriptor in (reader, *streams):
            os.close(descriptor)


def _import(names: Sequence[str]) -> None:
    """Import what is not there yet, for this program and all that come after it."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        with contextlib.suppress(ImportError):  # then the program says so, if it needs it
            importlib.import_module(name)
    if missing:
        gc.freeze()


def _join(request: Mapping[str, Any]) -> None:
    """Be in the session and in the group that the program is to be in."""
    if request["is_session"]:
        os.setsid()
    elif request["group"] != os.getpgrp():
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the caller has ended
            os.setpgid(0, request["group"])


def _become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Be the process of a program, and run it."""
    os.chdir(request["folder"])
    first = max(request["numbers"]) + 1
    copies = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, first) for each in streams]
    for descriptor in streams:
        os.close(descriptor)
    for number, copy in zip(request["numbers"], copies, strict=True):
        os.dup2(copy, number)
        os.close(copy)
    if request["starts_others"]:
        _serve_own()
    environ = request["environ"]
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    sys.dont_write_bytecode = bool(environ.get("PYTHONDONTWRITEBYTECODE"))
    is_buffered = not environ.get("PYTHONUNBUFFERED")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, getattr(sys, name), is_buffered=is_buffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.path[:0] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    setattr(sys, _MARK, True)
    importlib.invalidate_caches()
    with _failpoints(environ.get("ERGON_FAILPOINTS", "")):
        _run_main(request["words"])


def _serve_own() -> None:
    """Let what the product starts in this process be forked: from now on, by a copy of it."""
    here, there = socket.socketpair()
    if os.fork():
        there.close()
        _running[os.getpid()] = _Server(os.getpid(), here, os.geteuid())
        return
    os.setpgid(0, 0)  # signals to the group are for the program
    nothing, control = os.open(os.devnull, os.O_RDWR), there.fileno()
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, control)
    os.closerange(control + 1, os.sysconf("SC_OPEN_MAX"))
    with there, contextlib.suppress(KeyboardInterrupt):
        program = serve(there)
    if program is not None:
        program()
    sys.exit()  # through the frames of the program, which has begun nothing yet


def _failpoints(text: str) -> AbstractContextManager[None]:
    """Those of the program: the module has looked for the variable when it was imported."""
    from ergon_framework.storage import failpoints

    return failpoints.armed(text)


def _stream(number: int, like: Any, *, is_buffered: bool) -> io.TextIOWrapper:
    """A standard stream as the interpreter makes it at its start."""
    mode, size = ("wb", -1 if is_buffered else 0) if number else ("rb", -1)
    raw = open(number, mode, size, closefd=False)  # noqa: SIM115 - open as long as the process
    is_line = is_buffered and number > 0 and (number == 2 or raw.isatty())
    return io.TextIOWrapper(
        raw,
        like.encoding,
        like.errors,
        newline="\n",
        line_buffering=is_line,
        write_through=not is_buffered,
    )


def _run_main(words: Sequence[str]) -> None:
    """``python -m NAME``, ``python -c CODE`` or ``python FILE``, with their arguments."""
    if words[:3] == ISOLATED:
        words = _executed(words[2:])
    first, *rest = words
    main = sys.modules["__main__"] = ModuleType("__main__")
    if first == "-m":
        sys.path.insert(0, str(Path.cwd()))
        spec = importlib.util.find_spec(rest[0])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{rest[0]}.__main__")
        loader: Any = spec and spec.loader
        if spec is None or loader is None:
            sys.exit(f"{sys.executable}: No module named {rest[0]}")
        main.__spec__, main.__loader__, main.__package__ = spec, loader, spec.parent
        main.__file__ = spec.origin
        sys.argv = [str(spec.origin), *rest[1:]]
        code = loader.get_code(spec.name)
    elif first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        code = compile(rest[0], "<string>", "exec")
        if sys.version_info >= (3, 13):  # whose tracebacks show the lines of such a program
            lines = [f"{line}\n" for line in rest[0].splitlines()]
            linecache.cache["<string>"] = (len(rest[0]), None, lines, "<string>")
    else:
        sys.path.insert(0, str(Path(first).resolve().parent))
        main.__file__ = str(Path.cwd() / first)
        sys.argv = [first, *rest]
        code = compile(Path(first).read_bytes(), first, "exec")
    try:
        exec(code, main.__dict__)  # noqa: S102 - running programs is the point
    except Exception as error:
        begun = error.__traceback__ and error.__traceback__.tb_next  # in the program itself
        sys.excepthook(type(error), error.with_traceback(begun), begun)
        sys.exit(1)


def _run_whole(program: Callable[[], None]) -> None:
    """Run it, and end as Python does, but for taking all modules apart.

    That would write to each page that this process shares with the server: it takes longer than
    what most programs do.
    """
    code: object = None
    try:
        program()
    except SystemExit as error:
        code = error.code
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
        code = 1
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    sys.setswitchinterval(60)  # what its variables kept open is closed; its threads do not see it
    vars(sys.modules["__main__"]).clear()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        code = 120
    os._exit((code or 0) & 0xFF)


class _Executed(BaseException):
    """A program executes another, with these words."""


def _executed(words: Sequence[str]) -> Sequence[str]:
    """Run a program that may execute another: the words of that, if a fork can run it."""
    usual, path, signals = os.execvp, sys.path[:], (signal.SIGPIPE, signal.SIGXFSZ)

    def execute(file: str, arguments: Sequence[str]) -> None:
        found = [shutil.which(file) or file, *arguments[1:]]
        if _is_script(found[0]):
            found.insert(0, sys.executable)
        is_python = found[0] == sys.executable and len(found) > 1
        if is_python and _is_program(found[1:], "") and _is_understood(os.environ):
            raise _Executed(found[1:])
        usual(file, [*arguments])

    vars(os)["execvp"] = execute
    try:
        _run_main(words)
    except _Executed as error:
        sys.path[:] = path
        for number in signals:
            signal.signal(number, signal.SIG_IGN)  # as Python does when it starts
        return tuple(error.args[0])
    finally:
        vars(os)["execvp"] = usual
    sys.exit()


def _is_script(path: str) -> bool:
    """Whether it is a file that this interpreter runs when it is executed."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.readline().strip() == f"#!{sys.executable}".encode()
    return False


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file, which is no program's
    fork_children()
    _import([*LIBRARIES, *(f"ergon_framework.{part}" for part in ERGON)])
    with socket.socket(fileno=int(sys.argv[1])) as asked, contextlib.suppress(KeyboardInterrupt):
        program = serve(asked)
    if program is not None:
        _run_whole(program)
