"""The servers that tests may ask for, how patient Hypothesis is, and what the tests are kept from.

What the caller's shell passes on must not decide whether a test passes: signals that the parent
ignores (``nohup``, many CI systems) stay ignored in every process a test starts, and variables of
Ergon or of a terminal change what commands do and print.
"""

from __future__ import annotations

import gc
import os
import signal

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.servers.postgres",
    "tests.servers.redis",
    "tests.servers.nats",
    "tests.servers.nats_cluster",
    "tests.servers.kafka",
    "tests.servers.s3",
    "tests.servers.sqs",
    "tests.servers.tls",
    "tests.servers.mosquitto",
    "tests.servers.rabbitmq",  # which imports the one before
]

# A child inherits what is ignored or blocked; a handler becomes the default action when it starts.
for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
    if signal.getsignal(_number) == signal.SIG_IGN:
        _is_int = _number == signal.SIGINT
        signal.signal(_number, signal.default_int_handler if _is_int else signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())

for _name in [*os.environ]:
    if _name.startswith("ERGON_") or _name in {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}:
        del os.environ[_name]
os.environ["TERM"] = "xterm-256color"

# On a busy machine any example may have to wait for the processor longer than for its answer. Where
# a test says nothing else, half the usual number of examples has to do in every run.
settings.register_profile(
    "busy machines",
    settings(),
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy machines")


def pytest_collection_finish() -> None:
    """Look for garbage among what the tests make alone, which takes a tenth off their time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
