"""What a fact is, and what is checked before a log takes one. Nothing here does I/O.

Start with ``validation``: a producer's text goes in, and the record that a store appends comes out.

- ``validation``: parsing, checking and measuring one fact or a batch; references to artifacts.
- ``schema``: the fields with their rules, refusals by field, and the digest that identifies a fact.
- ``canonical``: strict JSON, and the one way to write a value (RFC 8785).
- ``ids``: deriving a message id from what happened; recognising ids that a retry would change.
"""
