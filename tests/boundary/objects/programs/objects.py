"""Does one thing with a folder of blobs, and says on standard output what came of it.

The URL of a bucket may stand in place of the folder.

python objects.py crash FOLDER     put blobs and delete one, until it dies at a failpoint
python objects.py cut FOLDER       send parts of one blob, until it dies at a failpoint
python objects.py race FOLDER      put the same blob again and again, after a line on its input
python objects.py hold FOLDER      begin uploads and keep them until its input ends
python objects.py limit FOLDER     put more than the process may write to a file
python objects.py fork FOLDER      put in a process, and in a child that was forked from it
"""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import sys
from collections.abc import Callable

from ergon_framework.errors import ErgonError
from ergon_framework.ports.objectstore import ObjectStore
from ergon_framework.storage.objectstore.urls import open_object_store

MIB = 1 << 20


def noise(seed: int, size: int = 2 * MIB + 500_000) -> bytes:
    """Bytes that do not repeat, the same ones each time."""
    return hashlib.shake_128(b"%d" % seed).digest(size)


def say(text: str) -> None:
    """One line, at once."""
    os.write(1, f"{text}\n".encode())


def put(store: ObjectStore, data: bytes) -> str:
    """Upload bytes piece by piece; their digest."""
    upload = store.upload()
    for at in range(0, len(data), 300_000):
        upload.write(data[at : at + 300_000])
    return upload.finish().digest.hex()


def crash(store: ObjectStore) -> None:
    """Tell what was begun and what was acknowledged."""
    for seed in range(4):
        say(f"acked {put(store, noise(seed))}")
    gone = hashlib.sha256(noise(0)).digest()
    say(f"began {gone.hex()}")
    store.delete(gone)
    say(f"deleted {gone.hex()}")


def cut(store: ObjectStore) -> None:
    """Send a part; the failpoint decides how much of it."""
    data = noise(7, 6 * MIB)
    upload = store.partial(hashlib.sha256(data).digest())
    for at in range(upload.size, len(data), MIB):
        upload.write(data[at : at + MIB])
    say(f"acked {upload.finish().digest.hex()}")


def race(store: ObjectStore) -> None:
    """All begin at the same time."""
    say("ready")
    sys.stdin.readline()
    for seed in range(10):
        say(put(store, noise(seed)))


def hold(store: ObjectStore) -> None:
    """Live uploads, one of each kind."""
    data = noise(1)
    uploads = [store.upload(), store.partial(hashlib.sha256(data).digest())]
    for upload in uploads:
        upload.write(data[: 2 * MIB])
    say("ready")
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)


def limit(store: ObjectStore) -> None:
    """A file that may not grow any more is what a full disk looks like."""
    sys.dont_write_bytecode = True  # it would be cut off, and nobody told
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
    try:
        put(store, noise(1))
    except ErgonError as error:
        say(error.code)
    say(put(store, noise(1, 1000)))


def fork(store: ObjectStore) -> None:
    """Threads do not survive a fork; their work must go on all the same."""
    say(put(store, noise(1)))
    pid = os.fork()
    if pid == 0:
        say(put(store, noise(2)))
        os._exit(0)
    say(str(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    actions: dict[str, Callable[[ObjectStore], None]] = {
        each.__name__: each for each in (crash, cut, race, hold, limit, fork)
    }
    actions[sys.argv[1]](open_object_store(sys.argv[2]))
