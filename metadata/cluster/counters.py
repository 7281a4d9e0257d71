"""Numbers that are handed out once: sessions, and blocks of producer ids.

Invariant: no number is taken twice, over restarts, lost answers and brokers that ask at once. Some are never used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metadata.errors import OutcomeUnknown, Rejected, Unavailable
from metadata.model import SessionId
from metadata.store.interface import Compare, MetadataStore, Operation, Put
from metadata.store.keys import EtcdLayout, parse_number

ATTEMPTS_MAX = 64
"""Each attempt that is lost was won by someone else, so only a crowd of brokers starting at once comes near."""
NUMBER_MAX = 2**63 - 1


async def next_session(
    store: MetadataStore, layout: EtcdLayout | None = None, *, at_least: int = 1, writer: bytes = b""
) -> SessionId:
    """A session number that nobody else has, from 1 on.

    `at_least` moves the counter past the sessions that lie on the bucket already, where the metadata were lost. `writer`: the
    nonce of the broker that takes the number; the same transaction stores it under `beginning`, until the session has begun.
    Raises Unavailable, Corrupt.
    """
    keys = layout or EtcdLayout()

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
    """`count` numbers in a row that nobody has, none below `at_least`; `key` holds the next one in decimal, absent is 1.

    `also` returns operations of the same transaction for the numbers that it takes.
    Raises Rejected when fewer than `count` are left below `end`, Unavailable, and Corrupt where the key holds something else.
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
        except OutcomeUnknown as error:  # if it did happen, these numbers are nobody's, and the guard now fails
            unknown = error
            continue
        if result.succeeded:
            return taken
    raise Unavailable(f"no number could be taken from {key} in {ATTEMPTS_MAX} attempts", key=key) from unknown
