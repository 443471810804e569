"""One module per system that transactions come from or go to.

A connector is imported at its first use: a program without zones loads nothing of the boundary.

Where to look first: ``base`` is what connectors share. ``memory`` is a queue in this process,
``jsonl`` a folder of files, ``jobs`` the job queue as a source and a target, ``boundary`` the facts
of a zone. ``database`` reads rows of any table, ``files`` those of files, and ``http`` polls APIs
of others and posts to them. ``webhook`` takes requests of other services. ``broker`` is what
connectors to message brokers share; each of those is one module.
``transaction`` only re-exports the class of the port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.lazy_exports import lazy_exports
from ergon_framework.ports.transaction import Transaction

if TYPE_CHECKING:
    from ergon_framework.connector.boundary import BoundaryConnector, Zone
    from ergon_framework.connector.broker.registry import from_url
    from ergon_framework.connector.database import DatabaseConnector
    from ergon_framework.connector.files import FilesConnector
    from ergon_framework.connector.http import HttpPollConnector, HttpPostConnector
    from ergon_framework.connector.jobs import JobsConnector
    from ergon_framework.connector.jsonl import JsonlConnector
    from ergon_framework.connector.kafka import KafkaConnector
    from ergon_framework.connector.memory import MemoryConnector
    from ergon_framework.connector.mqtt import MqttConnector
    from ergon_framework.connector.rabbitmq import RabbitConnector
    from ergon_framework.connector.sqs import SqsConnector
    from ergon_framework.connector.webhook import WebhookReceiver

_HOMES = {
    "BoundaryConnector": "connector.boundary",
    "DatabaseConnector": "connector.database",
    "FilesConnector": "connector.files",
    "HttpPollConnector": "connector.http",
    "HttpPostConnector": "connector.http",
    "JobsConnector": "connector.jobs",
    "JsonlConnector": "connector.jsonl",
    "KafkaConnector": "connector.kafka",
    "MemoryConnector": "connector.memory",
    "MqttConnector": "connector.mqtt",
    "RabbitConnector": "connector.rabbitmq",
    "SqsConnector": "connector.sqs",
    "WebhookReceiver": "connector.webhook",
    "Zone": "connector.boundary",
    "from_url": "connector.broker.registry",
}

__all__ = [
    "BoundaryConnector",
    "DatabaseConnector",
    "FilesConnector",
    "HttpPollConnector",
    "HttpPostConnector",
    "JobsConnector",
    "JsonlConnector",
    "KafkaConnector",
    "MemoryConnector",
    "MqttConnector",
    "RabbitConnector",
    "SqsConnector",
    "Transaction",
    "WebhookReceiver",
    "Zone",
    "from_url",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
