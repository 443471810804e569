"""HTTP/1.1 between producers, consumers and nodes: a server, and sync and async clients.

Nothing here knows facts. The server hands each request to an ``Application`` as an ``Exchange``
(``exchange``); the clients are what producers, consumers and links call.

- ``server``: listening and accepting; ``connection``: one client; ``parser``: bytes to requests
  within limits; ``responses``: refusals and bytes of responses; ``server_state``: what connections
  share.
- ``client``, ``async_client``: the clients; ``codec``: what they share, without a socket;
  ``endpoint``: where a node is and how to trust it.
- ``tls``: contexts, certificates that are renewed, which zone a certificate is for.
- ``addresses``: which addresses stay on this machine, and binding them.
"""
