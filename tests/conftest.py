"""The servers that tests may ask for."""

from __future__ import annotations

pytest_plugins = [
    "tests.servers.postgres",
    "tests.servers.redis",
    "tests.servers.nats",
    "tests.servers.nats_cluster",
    "tests.servers.s3",
    "tests.servers.tls",
]
