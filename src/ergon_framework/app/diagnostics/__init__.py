"""``ergon check`` and ``ergon doctor``: what is wrong with a settings file, a machine or a server.

``check`` opens nothing: it reads the settings and tries whether everything in them fits together,
and names each problem with its line. ``doctor`` looks at the machine and at what the settings name:
stores, servers, nodes, the collector.

Where to look first: ``check`` and ``doctor`` are the two commands. ``findings`` is what both answer
with, ``servers`` asks servers about durability and reachability, and ``jobs``, ``zones`` and
``providers`` know what is to be checked and examined in each of these parts.
"""
