"""Redis under a store: its address, connections, scripts and notifications, and what goes wrong.

A store holds one ``RedisClient`` and runs scripts on it. A script is atomic, and its effects reach
the server's log together. What an acknowledgement is worth depends on the server's settings, which
``diagnostics.py`` reads and puts into words. This package needs the extra ``redis``; only
``address.py`` can be imported without it.

- ``client``: connections and scripts; ``notifier``: publish and subscribe
- ``address``, ``errors``, ``diagnostics``: where it is, what goes wrong, what ``doctor`` asks
"""
