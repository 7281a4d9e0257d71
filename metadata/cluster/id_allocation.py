"""Allocates numbers that are handed out once: sessions by a counter of the cluster, and producer ids from sessions.

    a producer id, 63 bits:   00 │ session, 29 bits │ count in the session, 32 bits     handed out here
                              01 │ …    derived from what is written (by Spark: spark/sink/staged_files.py), never handed out
                              1  │ …    made from idempotency keys, never handed out

A producer id must not depend on a counter of the metadata: these may exist twice, or be set back to a backup. A second producer
with the id of a first one would have its records taken for repeats, which are acknowledged and not written. A session is claimed
on the bucket, once over all copies of the metadata (segments/wal/session.py).

The bucket, too, may be set back: to a copy, or to a replica that lags. A session number that only the lost bucket knew is then
claimed again. A restore leaves a space of numbers ahead (tidelog/bucket/restore_plan.py), and the count of each session begins at a
random number, so the same session number gives other ids. Two sessions that give n ids each share one with a chance of n / 2^31.

Invariant: no number is taken twice, over restarts, lost answers, concurrent brokers and copies of the metadata. Some are never
used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from metadata.errors import OutcomeUnknown, Rejected, Unavailable
from metadata.model import ProducerId, SessionId
from metadata.store.interface import Compare, MetadataStore, Operation, Put
from metadata.store.keys import KeyLayout, parse_number

# The first of the producer ids that producers derive themselves, to be the same after a crash.
DERIVED_IDS: Final = 1 << 61
# The first producer id that stands for an idempotency key.
IDEMPOTENCY_KEY_IDS: Final = 1 << 62
# Producer ids of one session.
IDS_PER_SESSION: Final = 1 << 32
# Session numbers end here, because the ids of later ones would be among those that producers derive.
SESSIONS_END: Final = DERIVED_IDS // IDS_PER_SESSION
_DRAWN_BYTES: Final = 8


class ProducerIds:
    """Hands out producer ids of the present session, or of the last one between two sessions. It asks no store."""

    def __init__(self, session: Callable[[], int | None], random_bytes: Callable[[int], bytes]) -> None:
        """`session` returns the present session of this broker; None without one. `random_bytes` draws where its ids begin."""
        self._present_session = session
        self._random_bytes = random_bytes
        self._session: int | None = None
        self._first = 0
        self._count = 0

    def next(self) -> ProducerId:
        """Returns an id that was never handed out before. Raises Unavailable before the first session; Rejected when all are used
        up."""
        session = self._present_session()
        if session is not None and session != self._session:
            first = int.from_bytes(self._random_bytes(_DRAWN_BYTES)) % IDS_PER_SESSION
            self._session, self._first, self._count = session, first, 0
        if self._session is None:
            raise Unavailable("this broker has no session yet, and so no producer ids", hint="Retry with back-off.")
        if self._count == IDS_PER_SESSION or self._session >= SESSIONS_END:
            raise Rejected(f"the producer ids of session {self._session} are used up", hint="Start the broker again.")
        number = (self._first + self._count) % IDS_PER_SESSION  # the last number is followed by the first
        self._count += 1
        return ProducerId(self._session * IDS_PER_SESSION + number)


# Each lost attempt was won by another broker, so only many brokers that start at once come near.
ATTEMPTS_MAX = 64
NUMBER_MAX = 2**63 - 1


async def next_session(
    store: MetadataStore, layout: KeyLayout | None = None, *, at_least: int = 1, writer: bytes = b""
) -> SessionId:
    """Takes a new session number, from 1 on.

    `at_least` moves the counter past the sessions on the bucket, where the metadata were lost. `writer`: the nonce of the broker
    that takes the number. The same transaction stores it under `beginning`, until the session has begun.

    Raises Unavailable, Corrupt.
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
