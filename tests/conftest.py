"""The servers that tests may ask for, and how patient Hypothesis is."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.servers.postgres",
    "tests.servers.redis",
    "tests.servers.nats",
    "tests.servers.nats_cluster",
    "tests.servers.s3",
    "tests.servers.tls",
]

# On a busy machine any example may have to wait for the processor longer than for its answer.
settings.register_profile(
    "busy machines", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machines")
