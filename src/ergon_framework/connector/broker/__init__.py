"""What connectors to message brokers share; each of them is a module beside this package.

Where to look first: ``message`` turns a transaction into a body and headers and back, the same for
every broker. ``registry`` finds the connector that a URL means, and ``url`` reads the URL.
``connection`` waits for a broker that is away. ``in_flight`` bounds what is delivered and not
settled. ``leases`` renews what a system keeps for us for so long, and ``leased_source`` is how such
a system is fetched from. ``delays`` keeps deliveries back until they are due. ``wakeup`` ends the
waits of a fetch. ``lossless_json`` refuses what JSON would change.
"""
