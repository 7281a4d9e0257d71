"""Explores every moment at which a data directory can be copied, and every interleaving of the two brokers from then on. Pure.

    copy 0          a counter of session numbers, notes of sessions that are not known to have ended, and who led the one partition
    copy 1          the same, as copy 0 was when the directory was copied
    broker 0, 1     one of each copy: begins a session, seals what it must, appoints itself, takes over, writes; it may crash at any
                    step and begin again
    bucket          of each session: who has claimed it, whether it has written, whether it is sealed

Each step is one request to the bucket or one transaction of the metadata, as in gateway/cluster/session_opener.py without etcd. In
clone_model.py the copies part before any session begins, and have several brokers each.

Invariant: a writer knows of every session that has written to the partition before.

    python -m tests.simulation.copied_directory_model                            explores all of it
    python -m tests.simulation.copied_directory_model --break notes-forgotten    shows the shortest way to the damage
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
    NOTES_FORGOTTEN = "notes-forgotten"
    EARLIER_UNSEALED = "earlier-unsealed"
    EARLIER_UNREAD = "earlier-unread"
    NOT_LOOKED_AHEAD = "not-looked-ahead"


@dataclass(frozen=True, slots=True)
class Bounds:
    # Session numbers; a broker that needs more takes no more steps.
    numbers: int = 4
    # Of both brokers together.
    crashes: int = 1
    broken: Break = Break.NOTHING


class Do(IntEnum):
    """What a broker does next."""

    # Looks whether a foreign session has written.
    CHECK = 0
    TAKE = 1
    CLAIM = 2
    LIST_AHEAD = 3
    COMPARE_NOTES = 4
    # Whether the next session to be ended has written what it must not have.
    LOOK = 5
    SEAL = 6
    CHECK_AGAIN = 7
    FORGET = 8
    APPOINT = 9
    # Seals the sessions that led before, one at a step.
    TAKE_OVER = 10
    WRITE = 11
    # Refused: its metadata are not the bucket's any more.
    GONE = 12
    # Its directory is yet to be copied.
    ABSENT = 13


class Broker(NamedTuple):
    do: Do = Do.CHECK
    number: int = -1
    # Sessions that a listing showed beyond the own counter.
    ahead: tuple[int, ...] = ()
    # Sessions that are yet to be ended, and whether each is foreign.
    ending: tuple[tuple[int, bool], ...] = ()
    # Notes that may be deleted.
    settled: tuple[int, ...] = ()
    # Whether the number is yet to be claimed, so that a session which is ended was passed over.
    claims: bool = True
    # Sessions that led before, and have yet to be sealed.
    unsealed: tuple[int, ...] = ()


class Copy(NamedTuple):
    next_number: int = 0
    # Number and nonce.
    notes: tuple[tuple[int, int], ...] = ()
    # Sessions that were appointed to the partition, by ascending epoch.
    led: tuple[int, ...] = ()


class Session(NamedTuple):
    claimed_by: int = -1
    wrote: bool = False
    sealed: bool = False


class State(NamedTuple):
    brokers: tuple[Broker, Broker]
    lives: tuple[int, int]
    copies: tuple[Copy, Copy]
    sessions: tuple[Session, ...]
    crashes_left: int
    is_damaged: bool = False


def explore(bounds: Bounds) -> tuple[int, list[str]]:
    """Returns how many states there are, and the shortest way to one that is damaged; empty where none is."""
    begin = State((Broker(), Broker(Do.ABSENT)), (0, 0), (Copy(), Copy()), (Session(),) * bounds.numbers, bounds.crashes)
    came_from: dict[State, tuple[State, str] | None] = {begin: None}
    left = deque([begin])
    while left:
        state = left.popleft()
        if state.is_damaged:
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
    if state.brokers[1].do is Do.ABSENT:
        yield "the directory is copied", _with(state._replace(copies=(state.copies[0], state.copies[0])), 1, Broker())
    for index, broker in enumerate(state.brokers):
        if broker.do in (Do.GONE, Do.ABSENT):
            continue
        after = _step(state, index, bounds)
        if after is not None:
            yield f"broker {index}: {broker.do.name} {broker.number}", after
        if state.crashes_left:
            crashed = _begins_again(state, index)._replace(crashes_left=state.crashes_left - 1)
            yield f"broker {index} crashes before {broker.do.name}", crashed


def _step(state: State, index: int, bounds: Bounds) -> State | None:
    broker, copy, broken, nonce = state.brokers[index], state.copies[index], bounds.broken, 2 * state.lives[index] + index

    def now(do: Do, **changes: object) -> State:
        return _with(state, index, broker._replace(do=do, **changes))  # type: ignore[arg-type]

    match broker.do:
        case Do.CHECK:
            noted = [number for number, held in copy.notes if state.sessions[number].claimed_by not in (-1, held)]
            if any(state.sessions[number].wrote for number in (*range(copy.next_number, bounds.numbers), *noted)):
                return now(Do.GONE)
            return now(Do.TAKE)
        case Do.TAKE:
            if copy.next_number == bounds.numbers:
                return None
            taken = copy._replace(next_number=copy.next_number + 1, notes=(*copy.notes, (copy.next_number, nonce)))
            return _with_copy(now(Do.CLAIM, number=copy.next_number), index, taken)
        case Do.CLAIM:
            if state.sessions[broker.number].claimed_by >= 0:
                return now(Do.LOOK, ending=((broker.number, True),), settled=(broker.number,))
            claimed = state.sessions[broker.number]._replace(claimed_by=nonce)
            return _with_session(now(Do.LIST_AHEAD, claims=False), broker.number, claimed)
        case Do.LIST_AHEAD:
            there = (number for number in range(copy.next_number, bounds.numbers) if state.sessions[number].claimed_by >= 0)
            return now(Do.COMPARE_NOTES, ahead=() if broken is Break.NOT_LOOKED_AHEAD else tuple(there))
        case Do.COMPARE_NOTES:
            claims = [(number, held, state.sessions[number].claimed_by) for number, held in copy.notes]
            foreign = [number for number, held, by in claims if by not in (-1, held)]
            earlier = [number for number, held, by in claims if by == held and number != broker.number]
            ending = [*((number, True) for number in (*foreign, *broker.ahead)), *((number, False) for number in earlier)]
            if broken is Break.EARLIER_UNSEALED:
                ending = [(number, is_foreign) for number, is_foreign in ending if is_foreign]
            settled = [*foreign, *earlier, *([broker.number] if broken is Break.NOTES_FORGOTTEN else [])]
            return now(Do.LOOK if ending else Do.FORGET, ahead=(), ending=tuple(ending), settled=tuple(settled))
        case Do.LOOK | Do.CHECK_AGAIN:
            number, is_foreign = broker.ending[0]
            is_unknown = is_foreign or (number not in copy.led and broken is not Break.EARLIER_UNREAD)
            if state.sessions[number].wrote and is_unknown:
                return now(Do.GONE)
            if broker.do is Do.LOOK:
                return now(Do.SEAL)
            rest = broker.ending[1:]
            return now(Do.LOOK if rest else Do.FORGET, ending=rest)
        case Do.SEAL:
            return _sealed(now(Do.CHECK_AGAIN), broker.ending[0][0])
        case Do.FORGET:
            left = copy._replace(notes=tuple(note for note in copy.notes if note[0] not in broker.settled))
            return _with_copy(now(Do.CHECK if broker.claims else Do.APPOINT, settled=()), index, left)
        case Do.APPOINT:
            appointed = copy._replace(led=(*copy.led, broker.number))
            return _with_copy(now(Do.TAKE_OVER if copy.led else Do.WRITE, unsealed=copy.led), index, appointed)
        case Do.TAKE_OVER:
            left_unsealed = broker.unsealed[1:]
            return _sealed(now(Do.TAKE_OVER if left_unsealed else Do.WRITE, unsealed=left_unsealed), broker.unsealed[0])
        case Do.WRITE:
            own = state.sessions[broker.number]
            if own.sealed:
                return _begins_again(state, index)
            unknown = any(other.wrote and number not in copy.led for number, other in enumerate(state.sessions))
            return _with_session(state, broker.number, own._replace(wrote=True))._replace(is_damaged=unknown)
        case _:
            raise AssertionError(broker.do)


def _begins_again(state: State, index: int) -> State:
    """In another process, or in the same one; with another nonce."""
    lives = (state.lives[0] + (index == 0), state.lives[1] + (index == 1))
    return _with(state._replace(lives=lives), index, Broker())


def _with(state: State, index: int, broker: Broker) -> State:
    return state._replace(brokers=(broker, state.brokers[1]) if index == 0 else (state.brokers[0], broker))


def _with_copy(state: State, index: int, copy: Copy) -> State:
    return state._replace(copies=(copy, state.copies[1]) if index == 0 else (state.copies[0], copy))


def _with_session(state: State, number: int, session: Session) -> State:
    return state._replace(sessions=(*state.sessions[:number], session, *state.sessions[number + 1 :]))


def _sealed(state: State, number: int) -> State:
    return _with_session(state, number, state.sessions[number]._replace(sealed=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--numbers", type=int, default=4)
    parser.add_argument("--crashes", type=int, default=1)
    parser.add_argument("--break", dest="broken", type=Break, default=Break.NOTHING)
    given = parser.parse_args()
    count, way = explore(Bounds(given.numbers, given.crashes, given.broken))
    print(f"{count:,} states", *way, sep="\n  ")


if __name__ == "__main__":
    main()
