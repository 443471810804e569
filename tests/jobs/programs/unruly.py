"""An executor on the standard library that misbehaves in the way its handler's name says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


def say(outcome: object) -> None:
    """One line on the standard output."""
    print(outcome if isinstance(outcome, str) else json.dumps(outcome), flush=True)


def wait_for_ever() -> None:
    """Until somebody ends this process."""
    while True:
        signal.pause()


def mark(path: str, text: str) -> None:
    """Leave a trace that a test can read."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


KEPT: list[Any] = []


def grow(size: int, *, is_child: bool) -> None:
    """Keep so many bytes, in this process or in one that it starts."""
    if not is_child:
        KEPT.append(b"x" * size)
        return
    program = f"kept = b'x' * {size}; print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", program], **pipes)  # type: ignore[call-overload]
    child.stdout.readline()
    KEPT.append(child)


def serve(request: dict[str, Any]) -> None:
    """Answer one request, or fail to."""
    answer: dict[str, Any] = {"job_id": request["job_id"], "status": "success", "result": None}
    name, args = request["function_name"], request["args"]
    if name == "wait_for":
        Path(args[0]).read_bytes()  # a named pipe: until somebody opens it for writing
        answer["result"] = os.getpid()
    elif name in ("grow", "grow_child"):
        grow(args[0], is_child=name == "grow_child")
    elif not (ends(name, args) or spoils(name, answer)):
        answer |= outcome(request)
    say(answer)


def outcome(request: dict[str, Any]) -> dict[str, Any]:
    """What a well-behaved handler of that name answers."""
    args, context = request["args"], request["context"]
    is_first = context["attempt"] == 1
    match request["function_name"]:
        case "echo":
            return {"result": {"args": args, "kwargs": request["kwargs"], "context": context}}
        case "pid":
            return {"result": os.getpid()}
        case "environment":
            return {"result": dict(os.environ)}
        case "mark":
            mark(args[0], request["job_id"])
            return {}
        case "busy_afterwards":
            return {}
        case "fail":
            return {"status": "error", "error_message": "boom", "error_type": "Boom"}
        case "fail_silently":
            return {"status": "error"}
        case "fail_once":
            return {"status": "error", "error_message": "once"} if is_first else {}
        case "retry":
            return {"status": "retry", "retry_after_seconds": args[0] if args else None}
        case "held":
            held = {"status": "retry", "error_type": "held", "retry_after_seconds": args[1]}
            return {} if Path(args[0]).exists() else held
        case "timeout":
            return {"status": "timeout"}
    return {"status": "error", "error_type": "handler_not_found", "error_message": "?"}


def ends(name: str, args: list[Any]) -> bool:
    """Die or hang, if that is what the name says; whether the name was one of these."""
    match name:
        case "crash":
            os._exit(3)
        case "crash_once":
            if not Path(args[0]).exists():
                mark(args[0], "crashed")
                os._exit(3)
            return True
        case "hang":
            wait_for_ever()
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            mark(args[0], str(os.getpid()))
            wait_for_ever()
        case "grandchild" | "orphan":
            child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
            mark(args[0], str(child.pid))
            if name == "orphan":
                os._exit(4)
            wait_for_ever()
        case "babble" | "endless_line":
            while True:
                os.write(1, b"blah\n" if name == "babble" else b"x" * 65536)
        case "close_stdout":
            sys.stdout.close()
            os.close(1)
            wait_for_ever()
    return False


def spoils(name: str, answer: dict[str, Any]) -> bool:
    """Make the answer or what is around it wrong; whether the name was one of these."""
    match name:
        case "wrong_id":
            answer["job_id"] = "somebody-else"
        case "no_id":
            del answer["job_id"]
        case "bad_status":
            answer["status"] = "great"
        case "stray":
            for line in ("hello", "{}", "", "[1]", "\x00\x01", '{"job_id": 5}'):
                say(line)
        case "twice":
            say(answer)
        case "partial" | "no_newline":
            text = json.dumps(answer)
            sys.stdout.write(text[:-5] if name == "partial" else text)
            sys.stdout.flush()
            os._exit(0)
        case "huge":
            answer["result"] = "x" * 200_000
        case "raw_control" | "raw_newline":
            byte = "\0" if name == "raw_control" else "\n"
            say(json.dumps({**answer, "result": "?"}).replace("?", byte))
            wait_for_ever()
        case "stderr_flood":
            sys.stderr.write("e" * 3_000_000 + "\n")
            sys.stderr.flush()
        case _:
            return False
    return True


if __name__ == "__main__":
    if len(sys.argv) > 1 and not Path(sys.argv[1]).exists():  # die at start until it is there
        sys.stderr.write("cannot import the moon\n")
        sys.exit(7)
    for line in sys.stdin:
        wanted = json.loads(line)
        serve(wanted)
        if wanted["function_name"] == "busy_afterwards":
            wait_for_ever()
