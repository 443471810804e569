"""Redis under a store: its address, connections, scripts and bells, and what goes wrong.

A store holds one ``RedisLink`` (in ``link.py``) and runs scripts on it. A script is atomic, and its
effects reach the server's log together. What an acknowledgement is worth is up to the server's
settings, which ``durability.py`` reads and puts into words. This package needs the extra ``redis``;
only ``address.py`` can be imported without it.
"""
