"""Job stores: memory, SQLite, PostgreSQL and Redis, all held to one behaviour suite.

Every store is one class with the calls of its ports. It *has* an object that runs transactions, and
``records`` for moves between stores; its folder has the same chapters whatever the engine is.

- ``transitions``: what stores decide alike; ``core/claim``: which due jobs a claim takes
- ``documents``, ``records``, ``unreadable``: stored JSON, copies, and rows that cannot be read
- ``flow_settlement``: what the end of a step brings about; ``erasure``: what is left of a job
- ``pages``: how the stores on SQL read the jobs of a search
- ``memory``, ``sqlite``, ``postgres``, ``redis``: the stores
"""
