"""How we speak to PostgreSQL, Redis and NATS, beside the drivers and what belongs to them."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from comparison import ContestantError, Record, RunOptions
from provider_parts.postgres import postgres

from library_parts.compare import Call, compare

HEADERS = b"Nats-Msg-Id: order-4711-paid-3\r\nErgon-From: plant-a\r\nErgon-Digest: " + b"0" * 64
HEADERS += b"\r\nNats-Expected-Stream: office\r\n\r\n"
KEYS = [f"{{jobs}}:{name}".encode() for name in ("rows", "bodies", "due", "leases", "counts")]
ARGS = [b"1800000000.25", b"100", b"worker-1", b"queue-a", b"queue-b"]


def pool(options: RunOptions) -> Iterator[Record]:
    """A connection that is borrowed and given back, without a word to the server."""
    with postgres(options) as url, ExitStack() as stack:

        def ours() -> Call:
            from ergon_framework.storage.deadlines import SocketWatchdog
            from ergon_framework.storage.postgres.address import address_of
            from ergon_framework.storage.postgres.pool import ConnectionPool

            connections = ConnectionPool(address_of(url()), 4, SocketWatchdog())
            stack.callback(connections.close)

            def call() -> None:
                with connections.borrow():
                    pass

            return call

        def library(**options: Any) -> Call:
            from psycopg_pool import ConnectionPool

            made = ConnectionPool(
                url(), min_size=1, max_size=4, open=True, kwargs={"autocommit": True}, **options
            )
            stack.callback(made.close)

            def call() -> None:
                with made.connection():
                    pass

            return call

        def checked() -> Call:
            from psycopg_pool import ConnectionPool

            return library(check=ConnectionPool.check_connection)

        def with_sqlalchemy() -> Call:
            import psycopg
            from sqlalchemy.pool import QueuePool

            made = QueuePool(
                lambda: psycopg.connect(url(), autocommit=True), pool_size=4, reset_on_return=None
            )
            stack.callback(made.dispose)
            return lambda: made.connect().close()

        others = {
            "psycopg_pool": library,
            "psycopg_pool, which asks the server": checked,
            "SQLAlchemy QueuePool": with_sqlalchemy,
        }
        yield from compare("pool", options, ours, others)


def statements(options: RunOptions) -> Iterator[Record]:
    """Four prepared statements in one round trip, and their rows."""
    with postgres(options) as url, ExitStack() as stack:

        def connection() -> Any:
            import psycopg

            return stack.enter_context(psycopg.connect(url(), autocommit=True))

        def ours() -> Call:
            from ergon_framework.storage.postgres.pipeline import Pipeline

            session, text = connection(), b"SELECT %(number)s::int, %(word)s::text"

            def call() -> list[Any]:
                with Pipeline(session) as pipeline:
                    said = [pipeline.execute(text, {"number": n, "word": "some"}) for n in range(4)]
                    return [answer.fetchall() for answer in said]

            return call

        def with_psycopg() -> Call:
            session, text = connection(), "SELECT %(number)s::int, %(word)s::text"

            def call() -> list[Any]:
                with session.pipeline():
                    said = [
                        session.execute(
                            text, {"number": n, "word": "some"}, prepare=True, binary=True
                        )
                        for n in range(4)
                    ]
                    return [cursor.fetchall() for cursor in said]

            return call

        yield from compare("statements", options, ours, {"psycopg": with_psycopg})


def arrays(options: RunOptions) -> Iterator[Record]:
    """Columns of 200 rows as binary arrays: ids, digests and times."""
    ids = [os.urandom(16).hex().encode() for _ in range(200)]
    digests = [os.urandom(32) for _ in ids]
    times = [1_800_000_000.25 + n for n in range(len(ids))]

    def ours() -> Call:
        from ergon_framework.storage.postgres.pipeline import ByteaArray, Floats

        return lambda: (ByteaArray(ids).data, ByteaArray(digests).data, Floats(times).data)

    def with_psycopg() -> Call:
        from psycopg.adapt import PyFormat, Transformer

        def dumped(values: list[Any]) -> Any:
            dumper = transformer.get_dumper(values, PyFormat.BINARY)
            return dumper.dump(values)

        transformer = Transformer()
        return lambda: (dumped(ids), dumped(digests), dumped(times))

    yield from compare("arrays", options, ours, {"psycopg": with_psycopg})


def redis_command(options: RunOptions) -> Iterator[Record]:
    """The call of a script as the bytes that are sent: five keys and five values."""

    def ours() -> Call:
        from ergon_framework.storage.redis.client import RedisScript, packed, read_lua

        package = "ergon_framework.jobs.stores.redis.lua"
        first = min(each.name for each in _folder(package).glob("*.lua"))
        source, keys = read_lua(package, first), packed(KEYS)
        script = RedisScript(source, keys=len(KEYS), names={})
        return lambda: script.call(keys, ARGS)

    def with_redis() -> Call:
        import redis

        pack = redis.Connection().pack_command
        arguments = (b"EVALSHA", b"0" * 40, len(KEYS), *KEYS)
        return lambda: pack(*arguments, *ARGS)

    yield from compare("redis-command", options, ours, {"redis-py": with_redis})


def _folder(package: str) -> Path:
    from importlib import resources

    return Path(str(resources.files(package)))


def nats_headers(options: RunOptions) -> Iterator[Record]:
    """The headers of a message, read."""

    def ours() -> Call:
        from ergon_framework.storage.nats.connect import read_headers

        return lambda: read_headers(HEADERS)

    def with_nats() -> Call:
        from nats.aio.client import Client

        read = getattr(Client, "_parse_header_lines", None)
        if read is None:
            raise ImportError("this release of nats-py reads headers elsewhere")
        return lambda: read(HEADERS)

    yield from compare("nats-headers", options, ours, {"nats-py": with_nats})


def nats_key(options: RunOptions) -> Iterator[Record]:
    """What one connect takes: read a seed, name its public key, sign what the server says."""
    nonce = "dGhlIG5vbmNlIG9mIGEgc2VydmVy"
    file = options.folder / "seed"

    def ours() -> Call:
        from ergon_framework.storage.nats.connect import signer_of

        _write_seed(file)

        def call() -> tuple[str, bytes]:
            signer = signer_of(None, str(file))
            if signer is None:
                raise ContestantError("there is no key")
            return signer.public(), signer.sign(nonce)

        return call

    def with_nkeys() -> Call:
        import nkeys

        def call() -> tuple[str, bytes]:
            pair = nkeys.from_seed(bytearray(file.read_bytes().strip()))
            return pair.public_key.decode(), base64.b64encode(pair.sign(nonce.encode()))

        if not file.exists():
            raise ContestantError("there is no key")
        return call

    yield from compare("nats-key", options, ours, {"nkeys (PyNaCl)": with_nkeys})


def _write_seed(file: Path) -> None:
    import binascii

    raw = bytes([18 << 3 | 20 << 3 >> 5, (20 << 3 & 31) << 3]) + os.urandom(32)
    whole = raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    file.write_bytes(base64.b32encode(whole).rstrip(b"="))
