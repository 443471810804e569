"""The commands for one consumer group. Nothing here waits or connects.

Each call is a generator of commands, so that it is written once for threads and asyncio.

A delivery is an entry that is pending for this consumer. The server counts how long it is idle, and
once that is ``claim_idle``, any consumer may claim it. So there is no other state than the
server's: a release makes an entry idle, parking sets its idle time so that it can be claimed when
the wait is over, and a renewal sets the idle time to zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ergon_framework.connector.broker.connection import BrokerUnavailableError
from ergon_framework.connector.redis_streams.client import Command, Steps
from ergon_framework.storage.server import Observation

Entry = tuple[bytes, dict[bytes, bytes]]
LONG_IDLE = 10**9
"""Milliseconds: older than any ``claim_idle``."""
OURS, NOT_PENDING, THEIRS = 1, 0, -1
_RENEWED_AT_ONCE = 500
_COUNTED_AT_ONCE = 10_000


class LuaScript:
    """A Lua script, called by its digest."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._digest = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - as the server does

    def call(self, keys: Sequence[str], *args: Any) -> Steps[Any]:
        """The script's answer. The text is sent to a server that does not know the script."""
        try:
            return (yield ("EVALSHA", self._digest, len(keys), *keys, *args))
        except Exception as error:
            if not str(error).upper().startswith(("NOSCRIPT", "NO MATCHING SCRIPT")):
                raise
        return (yield ("EVAL", self._text, len(keys), *keys, *args))


_IS_OURS = """
local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1]
if not found then return 0 end
if found[2] ~= ARGV[2] then return -1 end
"""
ACK = LuaScript(_IS_OURS + "redis.call('XACK', KEYS[1], ARGV[1], ARGV[3]) return 1")
SET_IDLE = LuaScript(
    _IS_OURS
    + """
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'IDLE', ARGV[4],
  'RETRYCOUNT', math.max(0, found[4] - ARGV[5]), 'JUSTID')
return 1"""
)
COUNTS = LuaScript(
    """
local counts = {}
for i = 2, #ARGV do
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  counts[#counts + 1] = found and found[4] or 0
end
return counts"""
)
SET_ASIDE = LuaScript(
    _IS_OURS
    + """
local entry = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])[1]
local fields, rest, has_id = {}, {}, false
for i, text in ipairs(entry and entry[2] or {}) do
  local part = i <= 7000 and fields or rest
  part[#part + 1] = text
  has_id = has_id or (part == fields and i % 2 == 1 and text == 'ergon-transaction-id')
end
if #rest > 0 then  -- unpack() takes no more than 8000, so these become one field
  fields[#fields + 1] = 'ergon-more-fields'
  fields[#fields + 1] = cjson.encode(rest)
end
if not has_id then
  fields[#fields + 1] = 'ergon-transaction-id'
  fields[#fields + 1] = ARGV[4]
end
for i = 5, #ARGV do fields[#fields + 1] = ARGV[i] end
redis.call('XADD', KEYS[2], '*', unpack(fields))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
return 1"""
)
RENEW = LuaScript(
    """
local gone = {}
for i = 3, #ARGV do
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  if found and found[2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', 0, 'JUSTID')
  else
    gone[#gone + 1] = ARGV[i]
  end
end
return gone"""
)
LEAVE = LuaScript(
    """
for i = 5, #ARGV do  -- the first of them, as many as ARGV[4] says, have a delivery to take back
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  if found and found[2] == ARGV[2] then
    local less = i < 5 + ARGV[4] and 1 or 0
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3],
      'RETRYCOUNT', math.max(0, found[4] - less), 'JUSTID')
  end
end
for _, found in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local info = {}
  for i = 1, #found, 2 do info[found[i]] = found[i + 1] end
  local is_old = info['idle'] > 86400000
  if info['pending'] == 0 and (info['name'] == ARGV[2] or is_old) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], info['name'])
  end
end
return 1"""
)


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """The names of one consumer, and its calls."""

    stream: str
    name: str
    consumer: str
    dead_letters: str
    claim_idle: float
    start: str

    @property
    def claim_ms(self) -> int:
        """The idle time, in milliseconds, from which any consumer may claim an entry."""
        return max(1, round(self.claim_idle * 1000))

    # ---- taking ---------------------------------------------------------------------------------

    def read(self, count: int, block: float) -> Steps[list[Entry]]:
        """Entries that no consumer has had. Waits up to ``block`` seconds for the first."""
        waits = ("BLOCK", max(1, round(block * 1000))) if block > 0 else ()
        answer = yield from self._in_group(
            (
                *("XREADGROUP", "GROUP", self.name, self.consumer, "COUNT", count),
                *(*waits, "STREAMS", self.stream, ">"),
            )
        )
        return [] if not answer else _whole(answer[0][1])

    def claim(self, ids: Sequence[bytes]) -> Steps[list[Entry]]:
        """Claim those of the given entries that no consumer has taken since they became idle."""
        command = ("XCLAIM", self.stream, self.name, self.consumer, self.claim_ms, *ids)
        return _whole((yield from self._in_group(command)))

    def claim_idle_ones(self, cursor: bytes, count: int) -> Steps[tuple[bytes, list[Entry], int]]:
        """Claim what other consumers left, from a place in the list on. Returns the next place, the
        entries, and how many entries had been trimmed away.
        """
        answer = yield from self._in_group(
            (
                *("XAUTOCLAIM", self.stream, self.name, self.consumer, self.claim_ms, cursor),
                *("COUNT", count),
            )
        )
        trimmed = answer[2] if len(answer) > 2 else []
        return answer[0], _whole(answer[1]), len(trimmed)

    def deliveries(self, entries: Sequence[bytes]) -> Steps[list[int]]:
        """How often each of these was delivered, this time included."""
        counts: list[int] = yield from COUNTS.call([self.stream], self.name, *entries)
        return counts

    def _in_group(self, command: Command) -> Steps[Any]:
        """The answer of a command. The group and the stream are made if they do not exist."""
        try:
            return (yield command)
        except Exception as error:
            if not _is_without_group(error):
                raise
        yield from self.create()
        return (yield command)

    def create(self) -> Steps[None]:
        """Make the group and the stream, unless they exist."""
        try:
            yield ("XGROUP", "CREATE", self.stream, self.name, self.start, "MKSTREAM")
        except Exception as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    # ---- settling -------------------------------------------------------------------------------

    def ack(self, entry: bytes) -> Steps[int]:
        """Acknowledge the entry."""
        return self._settle(ACK, entry)

    def set_idle(self, entry: bytes, milliseconds: int, *, is_counted: bool) -> Steps[int]:
        """Let it have been idle for so long. A delivery that is not to be counted is taken back
        from what the server counts.
        """
        return self._settle(SET_IDLE, entry, milliseconds, 0 if is_counted else 1)

    def set_aside(self, entry: bytes, identity: str, fields: Mapping[str, str]) -> Steps[int]:
        """Write the entry to the dead letters, with further fields."""
        more = [text for pair in fields.items() for text in pair]
        return self._settle(SET_ASIDE, entry, identity, *more)

    def _settle(self, script: LuaScript, entry: bytes, *args: Any) -> Steps[int]:
        """Settle the entry if this consumer still has it.

        A first attempt may have reached the server before its connection broke, so an entry that is
        not pending at the second attempt was settled by the first.
        """
        keys = [self.stream, self.dead_letters]
        try:
            try:
                answer: int = yield from script.call(keys, self.name, self.consumer, entry, *args)
                return answer
            except BrokerUnavailableError:
                again: int = yield from script.call(keys, self.name, self.consumer, entry, *args)
                return OURS if again == NOT_PENDING else again
        except Exception as error:
            if not _is_without_group(error):
                raise
            return NOT_PENDING  # the group is gone, and all that was pending with it

    def renew(self, entries: Sequence[bytes]) -> Steps[list[bytes]]:
        """Keep entries from other consumers for a while. Returns those that this
        consumer has lost.
        """
        gone: list[bytes] = []
        for n in range(0, len(entries), _RENEWED_AT_ONCE):
            part = entries[n : n + _RENEWED_AT_ONCE]
            try:
                gone += yield from RENEW.call([self.stream], self.name, self.consumer, *part)
            except Exception as error:
                if not _is_without_group(error):
                    raise
                gone += part
        return gone

    def leave(self, held: Sequence[bytes], parked: Sequence[bytes]) -> Steps[None]:
        """Give entries back, and remove this consumer and dead ones from the group.

        The deliveries of held entries are taken back from what the server counts. Those of parked
        ones were taken back when they were parked. A consumer with entries is not removed, because
        they would be removed with it.
        """
        try:
            yield from LEAVE.call(
                *([self.stream], self.name, self.consumer, LONG_IDLE, len(held)), *held, *parked
            )
        except Exception as error:
            if not _is_without_group(error):
                raise

    # ---- asking ---------------------------------------------------------------------------------

    def waiting(self) -> Steps[int]:
        """How many entries wait: never delivered, or idle for so long that any consumer may claim
        them.
        """
        group = yield from self.info()
        if group is None:
            return (yield ("XLEN", self.stream)) if self.start == "0" else 0
        lag = group.get("lag")
        if lag is None:  # the server does not know it: entries in between were deleted
            lag = yield from self._count_after(group["last-delivered-id"])
        idle = yield (
            *("XPENDING", self.stream, self.name, "IDLE", self.claim_ms),
            *("-", "+", _COUNTED_AT_ONCE),
        )
        return lag + len(idle)

    def info(self) -> Steps[dict[str, Any] | None]:
        """What the server knows of the group. None when there is no such group."""
        try:
            groups = yield ("XINFO", "GROUPS", self.stream)
        except Exception as error:
            if "no such key" in str(error):
                return None
            raise
        return next(
            (each for each in map(_named, groups) if _text(each["name"]) == self.name), None
        )

    def _count_after(self, entry: Any) -> Steps[int]:
        count, after = 0, _text(entry)
        while found := (yield ("XRANGE", self.stream, f"({after}", "+", "COUNT", 1000)):
            count, after = count + len(found), _text(found[-1][0])
        return count

    def scan(self, after: str) -> Steps[list[Entry]]:
        """The next entries of the stream."""
        low = f"({after}" if after else "-"
        return _whole((yield ("XRANGE", self.stream, low, "+", "COUNT", 100)))

    def get(self, entry: str) -> Steps[list[Entry]]:
        """One entry by its id."""
        return _whole((yield ("XRANGE", self.stream, entry, entry)))


def _whole(entries: Any) -> list[Entry]:
    """Ids and fields, without trimmed entries, of which only the id is left."""
    found = (each for each in entries or () if each and each[1] is not None)
    return [(each[0], dict(zip(each[1][::2], each[1][1::2], strict=True))) for each in found]


def _is_without_group(error: Exception) -> bool:
    text = str(error)
    return "NOGROUP" in text or "no such key" in text or "requires the key to exist" in text


def _named(info: Any) -> dict[str, Any]:
    if isinstance(info, dict):
        return {_text(name): value for name, value in info.items()}
    return {_text(name): value for name, value in zip(info[::2], info[1::2], strict=True)}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def observations(name: str, group: ConsumerGroup) -> Steps[list[Observation]]:
    """What ``ergon doctor`` says: whether the server keeps what it confirms, and the group."""
    text = yield ("INFO",)
    info = dict(
        line.split(":", 1) for line in text.decode(errors="replace").splitlines() if ":" in line
    )
    version = info.get("valkey_version") or info.get("redis_version", "of an unknown version")
    found = [
        Observation("server", f"{name} answers ({info.get('server_name', 'redis')} {version})")
    ]
    if info.get("role", "master") != "master":
        found.append(
            Observation(
                "role", "it is a replica, which may only be read", "name the primary", is_grave=True
            )
        )
    if info.get("aof_enabled", "1") == "0":
        found.append(
            Observation(
                "durability",
                "a crash of the server loses what it has confirmed since its last snapshot",
                "set appendonly yes there",
            )
        )
    if not info.get("maxmemory_policy", "noeviction").startswith(("noeviction", "volatile")):
        found.append(
            Observation(
                "eviction",
                f"the server may throw streams away (maxmemory-policy {info['maxmemory_policy']})",
                "set maxmemory-policy noeviction there",
            )
        )
    found.append((yield from _of_the_group(group)))
    return found


def _of_the_group(group: ConsumerGroup) -> Steps[Observation]:
    info = yield from group.info()
    if info is None:
        text = f"the group {group.name} of the stream {group.stream} is made at the first fetch"
        return Observation("group", text)
    waiting = yield from group.waiting()
    text = f"{group.stream}: {waiting} wait, {info['pending']} are in hand or were given back"
    return Observation("group", f"{text} ({info['consumers']} consumers of {group.name})")
