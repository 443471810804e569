"""Clients of a node: producers, consumers, an outbox and an inbox; sync and async.

Start with ``producer`` or ``consumer``. What a client does is written once, as a generator of
effects (``effects``), and performed by a runner for threads or for tasks.

- ``publish_effects``, ``consume_effects``: what publishing and consuming ask for, with retries.
- ``transport``: how a node is reached; HTTP (``boundary.http``) and the process itself fulfil it.
- ``artifacts``: blobs to send, and verified downloads. ``options``: the options of clients.
- ``outbox``: facts that are written down before they are sent; ``outbox_store`` keeps them in an
  SQLite file, and ``outbox_drain`` sends them.
- ``inbox``: effects once, in the consumer's own database.
"""
