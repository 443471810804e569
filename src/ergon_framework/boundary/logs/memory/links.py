"""The zone's own standing and that of its links, in memory."""

from __future__ import annotations

import secrets
from dataclasses import replace

from ergon_framework.boundary.logs.memory.state import State, Steps
from ergon_framework.ports.factstore import NEW_EPOCH, Link, StoreInfo


class MemoryLinks(Steps):
    """The part of the store that knows its peers."""

    def info(self) -> StoreInfo:
        """Which store this is."""
        with self._step() as state:
            return state.info

    def links(self) -> list[Link]:
        """Every link ever used or sealed, by peer; ``""`` is the seal of the whole zone."""
        with self._step() as state:
            return [state.links[peer] for peer in sorted(state.links)]

    def link(self, peer: str) -> Link:
        """One of them, or a fresh one."""
        with self._step() as state:
            return state.links.get(peer, Link(peer))

    def seal(self, peer: str, reason: str) -> Link:
        """Shut the link (``""``: all of them) until it is opened; sealing twice is fine."""
        with self._step() as state:
            self._note(state, "seal", f"{peer or 'all links'}: {reason}")
            link = state.links.get(peer, Link(peer))
            state.links[peer] = replace(link, is_sealed=True, reason=reason, at=self._clock())
            return state.links[peer]

    def open(self, peer: str) -> Link:
        """Open it again."""
        with self._step() as state:
            self._note(state, "open", peer or "all links")
            link = state.links.get(peer, Link(peer))
            if link.is_sealed:
                link = replace(link, is_sealed=False, reason="", at=self._clock())
                state.links[peer] = link
            return link

    def accept_epoch(self, peer: str, epoch: str | None) -> Link:
        """Trust the peer's store from now on, although it changed."""
        with self._step() as state:
            self._note(state, "accept_epoch", f"{peer}: {epoch}")
            link = state.links.get(peer, Link(peer))
            state.links[peer] = replace(link, epoch=epoch, offset=0, chain=b"", at=self._clock())
            return state.links[peer]

    def renew_epoch(self, epoch: str, why: str) -> StoreInfo:
        """Begin a new epoch, unless the store has another one than ``epoch`` already."""
        with self._step() as state:
            if state.info.epoch == epoch:
                self._note(state, "new_epoch", f"{why}; its epoch was {epoch}")
                state.attributes[NEW_EPOCH] = f"{self._clock()} {why}"
                state.info = replace(state.info, epoch=secrets.token_hex(8))
            return state.info

    def attribute(self, name: str) -> str | None:
        """A text that was written down about this store; None when there is none."""
        with self._step() as state:
            return state.attributes.get(name)

    def set_attribute(self, name: str, value: str) -> None:
        """Write a text down about this store."""
        with self._step() as state:
            state.attributes[name] = value

    def journal(self, limit: int = 100) -> list[tuple[float, str, str]]:
        """What operators did, newest first: instant, action, details as text."""
        with self._step() as state:
            return state.journal[::-1][:limit]

    def _note(self, state: State, action: str, details: str) -> None:
        state.journal.append((self._clock(), action, details))
