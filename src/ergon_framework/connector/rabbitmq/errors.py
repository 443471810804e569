"""The errors of RabbitMQ, the same for both client libraries."""

from __future__ import annotations

import re
from typing import ClassVar

from ergon_framework.errors import ChannelLostError, ConfigurationError, ConnectorError
from ergon_framework.storage import connection_errors

TLS_OPTIONS = connection_errors.Options("ca=FILE", "cert=FILE and key=FILE", "amqp://")

NOT_FOUND, REFUSED, NOT_ALLOWED = 404, 403, 530
"""Reply codes of AMQP: no such queue or exchange, no permission, no such virtual host."""
LOCKED, OTHERWISE = 405, 406
"""Reply codes: a queue is exclusive to another connection; a queue exists with other arguments."""
NOT_OURS = frozenset({REFUSED, LOCKED, OTHERWISE})
"""The possible replies when a queue is declared that another program has made."""


class RabbitConnectorError(ConnectorError):
    """The connector refuses what it was asked to do."""

    code = "rabbitmq_connector"


class UnroutableError(RabbitConnectorError):
    """No queue receives what is published there."""

    code = "rabbitmq_unroutable"


class NotTakenError(RabbitConnectorError):
    """The broker refused a published message."""

    code = "rabbitmq_not_taken"
    failure_kind = "transient"


class QueueDeletedError(ConnectionError):
    """The broker can be reached, but the consumed queue does not exist any more."""

    is_refusal: ClassVar[bool] = True
    remedy = "nothing, where the connector may declare it: it is made again"


def queue_deleted(queue: str) -> QueueDeletedError:
    """The error when the broker has ended a consumer because its queue was deleted."""
    return QueueDeletedError(f"the queue {queue!r} was deleted")


def channel_lost(name: str) -> ChannelLostError:
    """The error for a settlement whose channel has ended."""
    return ChannelLostError(
        f"the channel to {name} that delivered this message is closed",
        remedy="nothing: RabbitMQ delivers it again, to this process or another one",
    )


def no_answer(name: str) -> ConnectionError:
    """The error when the broker is connected and does not answer."""
    return ConnectionError(f"{name} does not answer")


def takes_nothing(name: str, reason: str = "it has an alarm") -> ConnectionError:
    """The error when the broker has blocked publishers, because it is short of memory or disk."""
    return ConnectionError(
        f"{name} takes no messages for now: {reason[:80]}; rabbitmq-diagnostics alarms says more"
    )


def made_before_fork(name: str) -> ConnectionError:
    """The error for a connection that is used in a fork of the process that made it."""
    return ConnectionError(f"the connection to {name} was made before a fork")


def unroutable(name: str, exchange: str, routing_key: str) -> UnroutableError:
    """The error for a mandatory message that was returned."""
    where = f"exchange {exchange!r}" if exchange else "the default exchange"
    return UnroutableError(
        f"{name}: {where} has no queue for the routing key {routing_key!r}",
        remedy="bind a queue to the exchange under that key, or change exchange or routing_key",
    )


def not_taken(name: str, routing_key: str) -> NotTakenError:
    """The error for a message that was answered with basic.nack."""
    return NotTakenError(
        f"{name}: a queue behind the routing key {routing_key!r} refused a message",
        remedy="it may be full (x-max-length), or have lost its quorum: rabbitmqctl list_queues",
    )


def refused(error: BaseException, name: str, queue: str) -> ConfigurationError | None:
    """The error for what a person has to correct before a connection can be made. None for an
    outage.
    """
    words, code = texts(error), reply_code(error)
    if "AuthenticationError" in words:  # also inside ProbableAuthenticationError
        return ConfigurationError(
            f"{name} refuses the login", remedy="fix user and password in the URL, or sasl"
        )
    # aiormq does not say why the broker closed where it should have opened the virtual host.
    if code == NOT_ALLOWED or any(each in words for each in _NO_VHOST):
        return ConfigurationError(
            f"{name} has no such virtual host, or the user may not use it",
            remedy="the URL is amqp://host/queue, or amqp://host/virtual-host/queue",
        )
    if code == REFUSED:
        said = _NO_ACCESS.search(words)
        return ConfigurationError(
            f"{name}: " + (said[0] if said else f"the user may not use or make queue {queue!r}"),
            remedy="rabbitmqctl set_permissions USER '.*' '.*' '.*', or make the queue yourself",
        )
    if code == NOT_FOUND and "no exchange" in words:
        exchange = words.partition("no exchange ")[2].partition(" in ")[0]
        return ConfigurationError(
            f"{name} has no exchange {exchange}", remedy="declare it, or change exchange"
        )
    if code == NOT_FOUND:
        return ConfigurationError(
            f"{name} has no queue {queue!r}", remedy="make it, or leave out declare=false"
        )
    return connection_errors.refused(name, words, TLS_OPTIONS)


_NO_ACCESS = re.compile(r"access to \w+ '[^']*' in vhost '[^']*' refused for user '[^']*'")
_NO_VHOST = ("AccessDeniedError", "NOT_ALLOWED", "Connection.OpenOk")
_CODES = {
    "ChannelNotFoundEntity": NOT_FOUND,
    "ChannelAccessRefused": REFUSED,
    "ChannelLockedResource": LOCKED,
    "ChannelPreconditionFailed": OTHERWISE,
    "ConnectionNotAllowed": NOT_ALLOWED,
}


def reply_code(error: BaseException) -> int | None:
    """The AMQP reply code of an error. pika keeps the number, aiormq has a class for each."""
    code = getattr(error, "reply_code", None)
    return code if isinstance(code, int) else _CODES.get(type(error).__name__)


def innermost(error: Exception) -> Exception:
    """The innermost error of those in which pika has wrapped it."""
    while True:
        inside = getattr(error, "exception", None) or [*getattr(error, "exceptions", ())][-1:]
        found = inside[0] if isinstance(inside, list) and inside else inside
        if not isinstance(found, Exception):
            return error
        error = found


def texts(error: BaseException) -> str:
    """The texts of an error and of all errors inside it, because clients wrap those of OpenSSL."""
    nested = [texts(each) for each in (error.__cause__, error.__context__) if each is not None]
    return "; ".join([f"{type(error).__name__}: {error!r}", *nested])
