"""What the rooms promise each other: the transaction, connectors, the clock, the sink of notices.

A port is a Protocol, or a plain class that every side must share. It holds no behaviour that could
differ between two adapters.
"""
