"""The options of both producers, and how an envelope is built from them."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict

from ergon_framework.boundary.arguments import (
    A_RETRY,
    COUNT,
    FILE,
    FLAG,
    FUNCTION,
    SECONDS,
    SECONDS_OR_ZERO,
    TEXT,
    ArgumentRule,
    check_given,
    one_of,
)
from ergon_framework.boundary.client.effects import RETRY_RULE, Dice
from ergon_framework.boundary.client.publish_effects import ProducerConfig
from ergon_framework.boundary.model import EnvelopeLike
from ergon_framework.core.retry import RetryRule
from ergon_framework.errors import ConfigurationError, FactInvalidError

TIMEOUT = 30.0
"""Seconds that a client's call may take."""


class TlsOptions(TypedDict, total=False):
    """Files of certificates, in PEM."""

    cert: str | None
    key: str | None
    ca: str | None


class ProducerOptions(TlsOptions, total=False):
    """``Producer(node, ...)``."""

    from_zone: str | None
    """The ``from_zone`` of envelopes that ``publish`` makes."""
    to_zone: str | None
    expected_zone: str | None
    """Whose certificate the node must show; then its host name need not match."""
    timeout: float
    """Seconds for a whole call with all its attempts; for a blob, without a byte that flows."""
    retry: RetryRule
    """The retry rule, in place of the specification's schedule."""
    deadline: float | None
    """Seconds for all attempts of one call together, while ``timeout`` bounds each attempt."""
    strict_ids: bool
    """Refuse ids that look random, like a time or like a counter, instead of warning."""
    jitter: Literal["none", "full"]
    """``full`` waits a random part of each delay, so that many producers do not come at once."""
    dice: Dice
    connections: int
    clock: Callable[[], float]
    """Unix seconds, for ``produced_at_unix_ms``."""


TLS = dict.fromkeys(("cert", "key", "ca"), FILE.or_none)
REACHING = TLS | {
    "expected_zone": TEXT.or_none,
    "timeout": SECONDS,
    "retry": A_RETRY,
    "connections": COUNT,
    "dice": FUNCTION,
}
"""What producers and consumers have in common."""
PRODUCER = REACHING | {
    "from_zone": TEXT.or_none,
    "to_zone": TEXT.or_none,
    "deadline": SECONDS_OR_ZERO.or_none,
    "strict_ids": FLAG,
    "jitter": one_of("none", "full"),
    "clock": FUNCTION,
}
"""What each of the options has to be."""


class EnvelopeOptions(TypedDict, total=False):
    """What ``publish`` makes an envelope of."""

    message_id: str | None
    from_zone: str | None
    to_zone: str | None
    produced_at_unix_ms: int | None
    correlation_id: str | None
    causation_id: str | None
    labels: dict[str, str] | None
    object_media_type: str | None
    object_schema: str | None


def client_tls(options: TlsOptions | ProducerOptions) -> Callable[[], ssl.SSLContext] | None:
    """What trusts and is trusted, renewed when the files are; None when none were given."""
    cert, key, ca = options.get("cert"), options.get("key"), options.get("ca")
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        raise ConfigurationError(
            "cert, key and ca belong together",
            remedy="give the certificate, its key and the authority that signed the node's",
        )
    from ergon_framework.boundary.http.tls import Certificates

    return Certificates(cert, key, ca).client


def check_options(name: str, given: Mapping[str, Any], known: Mapping[str, ArgumentRule]) -> None:
    """Refuse an unknown option, which would otherwise be ignored silently, or a wrong value."""
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise ConfigurationError(
            f"{name} knows no option {', '.join(unknown)}", remedy=f"use {', '.join(sorted(known))}"
        )
    check_given(given, known)


class ProducerBase:
    """The half of a producer that does not wait."""

    def __init__(self, options: ProducerOptions) -> None:
        check_options(type(self).__name__, options, PRODUCER)
        self.config = _producer_config(options)
        self.connecting: dict[str, Any] = {
            name: options[name]
            for name in ("expected_zone", "timeout", "connections")
            if name in options
        }
        self._from_zone = options.get("from_zone")
        self._to_zone = options.get("to_zone")
        self._clock = options.get("clock", time.time)

    def adopt(self, other: ProducerBase) -> None:
        """Copy the other producer's settings, except that each call is one attempt."""
        self.config = replace(other.config, rule=replace(other.config.rule, attempts=1))
        self._from_zone, self._to_zone = other._from_zone, other._to_zone
        self._clock = other._clock

    def envelope_of(self, envelope: EnvelopeLike | None, fields: EnvelopeOptions) -> EnvelopeLike:
        """The envelope that was given, or one made of what was given."""
        if envelope is not None:
            if fields:
                raise ConfigurationError(
                    f"an envelope was given, and also {', '.join(sorted(fields))}",
                    remedy="give the one or the other",
                )
            return envelope
        made: dict[str, Any] = {"from_zone": self._from_zone, "to_zone": self._to_zone, **fields}
        if made.get("produced_at_unix_ms") is None:
            made["produced_at_unix_ms"] = round(self._clock() * 1000)
        made = {name: value for name, value in made.items() if value is not None}
        if "message_id" not in made:
            raise FactInvalidError(
                "envelope.message_id is missing",
                reason="missing",
                remedy="derive it from the event: message_id(event_type, kind, id, revision=…)",
                details={"field": "envelope.message_id"},
            )
        return made


def bounded(retry: RetryRule | None, timeout: float | None) -> RetryRule:
    """The rule of a client's calls: the timeout bounds all attempts together.

    A rule of the caller's own keeps its budget, and has none unless a timeout was given, too.
    """
    rule = RETRY_RULE if retry is None else retry
    if rule.budget is not None or (retry is not None and timeout is None):
        return rule
    return replace(rule, budget=TIMEOUT if timeout is None else timeout)


def _producer_config(options: ProducerOptions) -> ProducerConfig:
    rule = bounded(options.get("retry"), options.get("timeout"))
    if options.get("jitter") == "full":
        rule = replace(rule, backoff=replace(rule.backoff, low=0.0, high=1.0))
    if options.get("deadline") is not None:
        rule = replace(rule, budget=options["deadline"])
    return ProducerConfig(
        rule, options.get("dice", random.random), options.get("strict_ids", False)
    )
