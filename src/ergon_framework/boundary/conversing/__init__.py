"""Conversations with a node: written once as scripts, held by threads and by event loops."""
