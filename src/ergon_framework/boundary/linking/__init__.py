"""The link to a peer: its facts are pulled, with their artifacts, into this zone."""
