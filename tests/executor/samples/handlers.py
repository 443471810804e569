"""Handlers that do what they should not, for executors as real processes."""

# ruff: noqa: T201 - printing is what they do wrong

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from ergon_framework.executor import Registry
from ergon_framework.executor.thread_pool import RequestQueue

print("printed while it was imported")
os.write(1, b"written while it was imported\n")
registry = Registry()


@registry.on_startup
def connect() -> None:
    """Print at the start."""
    print("connected")


@registry.on_shutdown
def disconnect() -> None:
    """Print at the end."""
    print("disconnected")


@registry.handler
def echo(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Give back what was sent."""
    return {"args": args, "kwargs": kwargs}


@registry.handler("print")
def print_everywhere(text: str) -> None:
    """Write to the standard output in every way there is."""
    print(text, "print")
    sys.stdout.write(f"{text} write\n")
    os.write(1, f"{text} descriptor\n".encode())
    subprocess.run(["echo", f"{text} child"], check=True)  # noqa: S603, S607
    logging.getLogger("sample").warning("%s log", text)


@registry.handler
def log(text: str) -> None:
    """Say something that is not important."""
    logging.getLogger("sample").info(text)


@registry.handler
def read() -> str:
    """Read the standard input, as a careless library would."""
    child = subprocess.run(["cat"], check=True, capture_output=True)  # noqa: S607
    return sys.stdin.read() + child.stdout.decode()


@registry.handler
def fork() -> int:
    """Let a forked child return into the executor's code."""
    pid = os.fork()
    if pid == 0:
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@registry.handler
def fork_under_lock() -> int:
    """The same while somebody holds the executor's lock."""
    [queue] = [each for each in gc.get_objects() if isinstance(each, RequestQueue)]
    with queue.lock:
        pid = os.fork()
    if pid == 0:
        queue.lock.acquire()
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@registry.handler
def fork_and_fail() -> list[int]:
    """One child starts a thread and returns, one raises."""
    codes = []
    for fails in (False, True):
        pid = os.fork()
        if pid == 0:
            if fails:
                raise ValueError("not in the child")
            speak = threading.Timer(0.05, os.write, (2, b"said by its thread\n"))
            speak.daemon = False
            speak.start()
            return []
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return codes


@registry.handler
def stop_child() -> int:
    """End a forked child as a pool does, once it is there."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"!")
        signal.pause()
    os.read(reader, 1)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@registry.handler
def fork_and_pause() -> int:
    """Wait for a forked child that waits for a signal."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@registry.handler
def multiprocess() -> list[int]:
    """Use a pool of forked processes."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2])


@registry.handler
def hang(word: str) -> str:
    """Say a word on the standard error, then wait until somebody opens the gate."""
    print(word)
    with open(os.environ["GATE"]):
        return "through"


@registry.handler
def linger() -> None:
    """Leave a thread behind that is not daemonic."""
    threading.Thread(target=threading.Event().wait, daemon=False).start()


@registry.handler
def modules() -> list[str]:
    """Which of the slow modules are loaded."""
    slow = {"asyncio", "opentelemetry", "pydantic", "rich", "typer"}
    return sorted(slow & set(sys.modules))


@registry.handler
def leave() -> None:
    """Try to end the process."""
    sys.exit(3)
