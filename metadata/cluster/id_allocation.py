"""Allocates numbers that are handed out once: sessions, and producer ids from blocks of the cluster's counter.

    1 … 2^61 - 1         handed out here
    2^61 … 2^62 - 1      derived from what is written (by Spark: spark/sink/staged_files.py), never handed out
    2^62 … 2^63 - 1      made from idempotency keys, never handed out

While `run()` is a task, half a block is kept in hand, so that producers can begin while the metadata store is unavailable.

Invariant: no number is taken twice, over restarts, lost answers and concurrent brokers. Some are never used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from metadata.errors import OutcomeUnknown, Rejected, TidelogError, Unavailable
from metadata.model import ProducerId, SessionId
from metadata.store.interface import Compare, MetadataStore, Operation, Put
from metadata.store.keys import KeyLayout, parse_number

# Ids taken at once, by one write to the store.
BLOCK = 1000
# The first of the producer ids that producers derive themselves, to be the same after a crash.
DERIVED_IDS = 1 << 61
# The first producer id that stands for an idempotency key.
IDEMPOTENCY_KEY_IDS = 1 << 62
# Pause before a failed block is requested again.
PAUSE_S = 1.0

log = logging.getLogger(__name__)


class ProducerIds:
    """Hands out producer ids from blocks, which `run()` takes in advance."""

    def __init__(self, store: MetadataStore, layout: KeyLayout | None = None) -> None:
        self._store = store
        self._layout = layout or KeyLayout()
        self._ids: deque[int] = deque()
        self._taking = asyncio.Lock()
        self._used = asyncio.Event()

    @property
    def in_hand(self) -> int:
        """Counts the ids that can be given without asking the store."""
        return len(self._ids)

    async def next(self) -> ProducerId:
        """Returns an id that was never handed out before. Raises Unavailable, Corrupt, and Rejected when all are used up."""
        if not self._ids:
            async with self._taking:
                if not self._ids:
                    await self._take()
        self._used.set()
        return ProducerId(self._ids.popleft())

    async def run(self) -> None:
        """Takes blocks in advance, until cancelled."""
        while True:
            self._used.clear()
            try:
                async with self._taking:
                    if len(self._ids) < BLOCK // 2:
                        await self._take()
            except TidelogError as error:
                log.warning("taking producer ids in advance failed: %s; retrying in %s s", error, PAUSE_S)
                await asyncio.sleep(PAUSE_S)
                continue
            await self._used.wait()

    async def _take(self) -> None:
        self._ids.extend(await take_numbers(self._store, self._layout.next_producer_id, BLOCK, end=DERIVED_IDS))


# Each lost attempt was won by another broker, so only many brokers that start at once come near.
ATTEMPTS_MAX = 64
NUMBER_MAX = 2**63 - 1


async def next_session(
    store: MetadataStore, layout: KeyLayout | None = None, *, at_least: int = 1, writer: bytes = b""
) -> SessionId:
    """Takes a new session number, from 1 on.

    `at_least` moves the counter past the sessions on the bucket, where the metadata were lost. `writer`: the nonce of the broker
    that
    takes the number; the same transaction stores it under `beginning`, until the session has begun. Raises Unavailable, Corrupt.
    """
    keys = layout or KeyLayout()

    def begin(taken: range) -> Sequence[Operation]:
        return [Put(keys.beginning_session(SessionId(taken.start)), writer.hex().encode())] if writer else []

    return SessionId((await take_numbers(store, keys.next_session, 1, at_least=at_least, also=begin)).start)


async def take_numbers(
    store: MetadataStore,
    key: str,
    count: int,
    *,
    at_least: int = 1,
    end: int = NUMBER_MAX,
    also: Callable[[range], Sequence[Operation]] = lambda _: (),
) -> range:
    """Takes `count` new numbers in a row, none below `at_least`. `key` holds the next one in decimal; absent is 1.

    `also` returns further operations of the same transaction. Raises Rejected when fewer than `count` are left below `end`,
    Unavailable, and Corrupt where the key holds something else.
    """
    unknown: OutcomeUnknown | None = None
    for _ in range(ATTEMPTS_MAX):
        held = await store.get(key)
        first = max(parse_number(held, absent=1), at_least)
        if first + count > end:
            raise Rejected(f"{key} is used up: no {count} numbers are left from {first} below {end}", key=key)
        guard = Compare(key, held.mod_revision if held else 0)
        try:
            taken = range(first, first + count)
            result = await store.transact([guard], [Put(key, str(taken.stop).encode()), *also(taken)])
        except OutcomeUnknown as error:  # if it was written, these numbers stay unused, and the guard fails now
            unknown = error
            continue
        if result.succeeded:
            return taken
    raise Unavailable(f"no number could be taken from {key} in {ATTEMPTS_MAX} attempts", key=key) from unknown
