"""Explores every interleaving of brokers that begin sessions by two copies of the same metadata, on one bucket. Pure.

    copy 0, copy 1   a counter of session numbers each, and notes of numbers that were taken and have yet to begin
    brokers          one or two of each copy: take a number, claim it, pass over what another has claimed, look for foreign
                     sessions, write; each may crash at any step and begin again
    bucket           of each session: who has claimed it, and what stands at its first place: nothing, a segment, a seal

Each step is one request to the bucket or one transaction of the metadata, as in gateway/cluster/session_opener.py. A broker that is
frozen is a broker that takes no more steps, so every such run is among those explored. A write stands for an acknowledgement, at an
offset that a broker of the other copy gives to a record of its own.

Invariant: brokers of one copy alone write.

    python -m tests.simulation.clone_model                            explores all of it
    python -m tests.simulation.clone_model --break passed-over-unsealed   shows the shortest way to the damage
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple


class Break(Enum):
    """One rule each that is not kept. The model must find what it leads to."""

    NOTHING = "nothing"
    PASSED_OVER_UNSEALED = "passed-over-unsealed"
    SEALED_UNLOOKED = "sealed-unlooked"
    NOT_NOTED = "not-noted"
    NOT_LOOKED_AHEAD = "not-looked-ahead"
    LOOKED_BEFORE_THE_CLAIM = "looked-before-the-claim"


@dataclass(frozen=True, slots=True)
class Bounds:
    # The copy that each broker uses.
    brokers: tuple[int, ...] = (0, 1)
    # Session numbers; a broker that needs more takes no more steps.
    numbers: int = 4
    # Of all brokers together.
    crashes: int = 1
    broken: Break = Break.NOTHING


class First(IntEnum):
    """What stands at the first place of a session."""

    NOTHING = 0
    SEGMENT = 1
    SEAL = 2


class Do(IntEnum):
    """What a broker does next."""

    # Looks whether a session has written that its metadata don't know.
    CHECK = 0
    TAKE = 1
    CLAIM = 2
    LOOK_PASSED = 3
    SEAL_PASSED = 4
    CHECK_AGAIN = 5
    LIST_AHEAD = 6
    COMPARE_NOTES = 7
    LOOK_FOREIGN = 8
    SEAL_FOREIGN = 9
    LOOK_FOREIGN_AGAIN = 10
    FORGET = 11
    WRITE = 12
    # Refused: its metadata are not the bucket's any more.
    GONE = 13


class Broker(NamedTuple):
    do: Do = Do.CHECK
    number: int = -1
    # Sessions that a listing showed beyond the own counter.
    ahead: tuple[int, ...] = ()
    # Sessions that are yet to be ended.
    foreign: tuple[int, ...] = ()
    # Notes that may be deleted.
    settled: tuple[int, ...] = ()


class Copy(NamedTuple):
    next_number: int = 0
    # Number and broker: taken, and not begun yet. A broker that crashed comes back with another nonce.
    notes: tuple[tuple[int, int], ...] = ()


class Session(NamedTuple):
    # The nonce of a broker's life; -1: not claimed.
    claimed_by: int = -1
    first: First = First.NOTHING


class State(NamedTuple):
    brokers: tuple[Broker, ...]
    # How often each broker has begun: with its index, the nonce of what it claims.
    lives: tuple[int, ...]
    copies: tuple[Copy, Copy]
    sessions: tuple[Session, ...]
    crashes_left: int
    # Of each copy, whether a broker has written by it.
    wrote: tuple[bool, bool] = (False, False)


def first(bounds: Bounds) -> State:
    count = len(bounds.brokers)
    sessions = (Session(),) * bounds.numbers
    return State((Broker(),) * count, (0,) * count, (Copy(), Copy()), sessions, bounds.crashes)


def explore(bounds: Bounds) -> tuple[int, list[str]]:
    """Returns how many states there are, and the shortest way to one in which both copies have written; empty where none is."""
    begin = first(bounds)
    came_from: dict[State, tuple[State, str] | None] = {begin: None}
    left = deque([begin])
    while left:
        state = left.popleft()
        if all(state.wrote):
            return len(came_from), _way_to(state, came_from)
        for name, after in steps(state, bounds):
            if after not in came_from:
                came_from[after] = state, name
                left.append(after)
    return len(came_from), []


def _way_to(state: State, came_from: dict[State, tuple[State, str] | None]) -> list[str]:
    way: list[str] = []
    while (step := came_from[state]) is not None:
        state, name = step
        way.append(name)
    return way[::-1]


def steps(state: State, bounds: Bounds) -> Iterator[tuple[str, State]]:
    for index, broker in enumerate(state.brokers):
        if broker.do is Do.GONE:
            continue
        after = _step(state, index, bounds)
        if after is not None:
            yield f"broker {index} of copy {bounds.brokers[index]}: {broker.do.name} {broker.number}", after
        if state.crashes_left:
            crashed = _begins_again(state, index)._replace(crashes_left=state.crashes_left - 1)
            yield f"broker {index} crashes before {broker.do.name}", crashed


def _step(state: State, index: int, bounds: Bounds) -> State | None:
    broker, copy_of = state.brokers[index], bounds.brokers[index]
    copy, broken = state.copies[copy_of], bounds.broken
    nonce = _nonce(state, index)

    def now(do: Do, **changes: object) -> State:
        return _with(state, index, broker._replace(do=do, **changes))  # type: ignore[arg-type]

    match broker.do:
        case Do.CHECK:
            known = [number for number, held in copy.notes if _is_foreign(state, number, held)]
            suspects = [*range(copy.next_number, bounds.numbers), *known]
            if any(state.sessions[number].first is First.SEGMENT for number in suspects):
                return now(Do.GONE)
            return now(Do.LIST_AHEAD if broken is Break.LOOKED_BEFORE_THE_CLAIM else Do.TAKE)
        case Do.TAKE:
            if copy.next_number == bounds.numbers:
                return None
            noted = () if broken is Break.NOT_NOTED else ((copy.next_number, nonce),)
            taken = Copy(copy.next_number + 1, (*copy.notes, *noted))
            return _with_copy(now(Do.CLAIM, number=copy.next_number), copy_of, taken)
        case Do.CLAIM:
            held = state.sessions[broker.number]
            if held.claimed_by >= 0:
                if broken is Break.PASSED_OVER_UNSEALED:
                    return _with_copy(now(Do.CHECK), copy_of, _without(copy, (broker.number,)))
                return now(Do.LOOK_PASSED)
            claimed = Session(nonce, held.first)
            after = Do.WRITE if broken is Break.LOOKED_BEFORE_THE_CLAIM else Do.LIST_AHEAD
            return _with_session(now(after), broker.number, claimed)
        case Do.LOOK_PASSED | Do.CHECK_AGAIN:
            if state.sessions[broker.number].first is First.SEGMENT:
                return now(Do.GONE)
            if broker.do is Do.LOOK_PASSED:
                return now(Do.SEAL_PASSED)
            return _with_copy(now(Do.CHECK), copy_of, _without(copy, (broker.number,)))
        case Do.SEAL_PASSED:
            if broken is Break.SEALED_UNLOOKED:
                return _sealed(_with_copy(now(Do.CHECK), copy_of, _without(copy, (broker.number,))), broker.number)
            return _sealed(now(Do.CHECK_AGAIN), broker.number)
        case Do.LIST_AHEAD:
            there = (number for number in range(copy.next_number, bounds.numbers) if state.sessions[number].claimed_by >= 0)
            return now(Do.COMPARE_NOTES, ahead=() if broken is Break.NOT_LOOKED_AHEAD else tuple(there))
        case Do.COMPARE_NOTES:
            foreign = tuple(number for number, held in copy.notes if _is_foreign(state, number, held))
            begun = tuple(number for number, held in copy.notes if state.sessions[number].claimed_by == held)
            ahead = tuple(number for number in broker.ahead if number >= copy.next_number)
            left = (*foreign, *ahead)
            following = Do.LOOK_FOREIGN if left else Do.FORGET
            return now(following, ahead=(), foreign=left, settled=(*begun, *foreign))
        case Do.LOOK_FOREIGN | Do.LOOK_FOREIGN_AGAIN:
            if state.sessions[broker.foreign[0]].first is First.SEGMENT:
                return now(Do.GONE)
            if broker.do is Do.LOOK_FOREIGN:
                return now(Do.SEAL_FOREIGN)
            rest = broker.foreign[1:]
            return now(Do.LOOK_FOREIGN if rest else Do.FORGET, foreign=rest)
        case Do.SEAL_FOREIGN:
            return _sealed(now(Do.LOOK_FOREIGN_AGAIN), broker.foreign[0])
        case Do.FORGET:
            after = Do.TAKE if broken is Break.LOOKED_BEFORE_THE_CLAIM else Do.WRITE
            return _with_copy(now(after, settled=()), copy_of, _without(copy, broker.settled))
        case Do.WRITE:
            return _write(state, index, copy_of)
        case _:
            raise AssertionError(broker.do)


def _write(state: State, index: int, copy_of: int) -> State | None:
    """A broker that finds its session sealed begins another one, in the same process."""
    number = state.brokers[index].number
    match state.sessions[number].first:
        case First.SEAL:
            return _begins_again(state, index)
        case First.SEGMENT:
            return None
        case _:
            wrote = (state.wrote[0] or copy_of == 0, state.wrote[1] or copy_of == 1)
            return _with_session(state, number, state.sessions[number]._replace(first=First.SEGMENT))._replace(wrote=wrote)


def _nonce(state: State, index: int) -> int:
    return state.lives[index] * len(state.brokers) + index


def _begins_again(state: State, index: int) -> State:
    lives = tuple(life + (one == index) for one, life in enumerate(state.lives))
    return _with(state._replace(lives=lives), index, Broker())


def _is_foreign(state: State, number: int, held: int) -> bool:
    return state.sessions[number].claimed_by not in (-1, held)


def _with(state: State, index: int, broker: Broker) -> State:
    return state._replace(brokers=(*state.brokers[:index], broker, *state.brokers[index + 1 :]))


def _with_copy(state: State, which: int, copy: Copy) -> State:
    return state._replace(copies=(copy, state.copies[1]) if which == 0 else (state.copies[0], copy))


def _with_session(state: State, number: int, session: Session) -> State:
    return state._replace(sessions=(*state.sessions[:number], session, *state.sessions[number + 1 :]))


def _sealed(state: State, number: int) -> State:
    """A seal behind a segment is as good as none here: the session has written, which its sealer sees."""
    held = state.sessions[number]
    return _with_session(state, number, held._replace(first=First.SEAL)) if held.first is First.NOTHING else state


def _without(copy: Copy, settled: tuple[int, ...]) -> Copy:
    return copy._replace(notes=tuple(note for note in copy.notes if note[0] not in settled))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--brokers", type=int, nargs="+", default=[0, 1], help="the copy that each broker uses")
    parser.add_argument("--numbers", type=int, default=4)
    parser.add_argument("--crashes", type=int, default=1)
    parser.add_argument("--break", dest="broken", type=Break, default=Break.NOTHING)
    given = parser.parse_args()
    count, way = explore(Bounds(tuple(given.brokers), given.numbers, given.crashes, given.broken))
    print(f"{count:,} states", *way, sep="\n  ")


if __name__ == "__main__":
    main()
