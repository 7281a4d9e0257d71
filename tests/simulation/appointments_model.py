"""Explores how two copies of an etcd appoint the leaders of one partition, with the numbered appointments on the bucket. Pure.

    copy A, copy B   who leads, who is asked to hand over to whom, who is registered; the number of the last batch of appointments
                     that is wholly applied, and the nonces that are noted for the next one
    controllers      two of A, which may depose each other at any step, and one of B
    sessions 0, 1    registered in A before the copy is made; each stays with A, or uses B from then on
    sessions 2, 3    session 2 begins in B; session 3 begins in A at any step, where there is room for it in the bounds
    bucket           the numbered batches; which sessions are sealed, and which have written

The copy is made at any step. A controller that crashes is one that is deposed and takes no more steps, and an answer that is lost
is one for which it does not wait. Each step is one request to the bucket or one transaction of the metadata, as in
gateway/controller/appointment_log.py, but that a take-over seals and reads all of its sessions in one step,
and that a session which a copy seals is registered there until then: so it may be chosen for longer than a real one.

Invariants: a writer has read all that other sessions have written before; a controller of metadata that exist once never
finds that they exist twice.

    python -m tests.simulation.appointments_model                        explores all of it
    python -m tests.simulation.appointments_model --break not-replayed   shows the shortest way to the damage
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
    # Leaders are appointed without a batch on the bucket.
    NOT_NUMBERED = "not-numbered"
    # A batch of this copy's own nonce counts as applied without its content.
    NOT_REPLAYED = "not-replayed"
    # A batch that is read back appoints no first leaders.
    FIRST_LEADER_SKIPPED = "first-leader-skipped"
    # A decision is skipped where the partition has changed since it was planned.
    SKIPPED_WHERE_CHANGED = "skipped-where-changed"
    # The session that a dead leader was asked to hand over to is left out.
    TARGET_FORGOTTEN = "target-forgotten"
    # That session is sealed, and not read.
    TARGET_UNREAD = "target-unread"
    # A leader that was asked to hand over is asked to keep the partition.
    TAKEN_BACK = "taken-back"
    # Batches are collected, and no one looks for later ones after the create.
    COLLECTED_UNLOOKED = "collected-unlooked"
    # A foreign batch is believed without a look whether this is still the controller.
    UNCONFIRMED = "unconfirmed"


@dataclass(frozen=True, slots=True)
class Bounds:
    # Batches; a controller that needs more takes no more steps.
    numbers: int = 2
    # Besides the first one of each copy: of controllers of A that depose each other.
    elections: int = 1
    # Whether the copy is made at some step.
    copied: bool = True
    # Of sessions 0 and 1, those that use B once it exists.
    leaves: tuple[int, ...] = ()
    # Whether batches are also written of which none is about this partition.
    idle_batches: bool = False
    # Whether a session begins in A at some step.
    newcomer: bool = False
    # Whether session 0 is asked to hand over to session 1 from the first.
    asked: bool = False
    # Whether B has a controller.
    led_copy: bool = True
    # Whether the partition has no leader at the beginning.
    unled: bool = False
    broken: Break = Break.NOTHING


class Span(NamedTuple):
    epoch: int
    session: int
    is_released: bool = False


class Led(NamedTuple):
    """The stored state of the partition; without spans it has had no leader yet."""

    spans: tuple[Span, ...] = (Span(0, 0),)
    moving_to: int = -1


class Copy(NamedTuple):
    led: Led = Led()
    # A bit for each session.
    registered: int = 0b11
    number: int = 0
    # Nonces noted for the next number.
    pending: tuple[int, ...] = ()
    controller: int = -1


class Do(IntEnum):
    """What a controller does next."""

    READ = 0
    LIST = 1
    PLAN = 2
    NOTE = 3
    CREATE = 4
    LOOK_BEYOND = 5
    APPLY = 6
    ADVANCE = 7
    # Whether what looks foreign is not of the next controller of the same copy.
    CONFIRM = 8
    GONE = 9


class Controller(NamedTuple):
    do: Do = Do.READ
    number: int = 0
    pending: tuple[int, ...] = ()
    nonce: int = -1
    planned_on: Led | None = None
    # The partition's next state; None where the batch is about others.
    content: Led | None = None


class Batch(NamedTuple):
    nonce: int
    planned_on: Led | None
    content: Led | None


class State(NamedTuple):
    copies: tuple[Copy, Copy | None] = (Copy(), None)
    controllers: tuple[Controller, ...] = (Controller(), Controller(), Controller())
    batches: tuple[Batch | None, ...] = ()
    # A bit for each session; session 2 does nothing before the copy is made.
    begun: int = 0b111
    sealed: int = 0
    wrote: int = 0
    # Of each session, what others wrote that it has not read; -1 where it does not serve the partition.
    serving: tuple[int, ...] = (-1, -1, -1, -1)
    elections_left: int = 0
    damage: str = ""


SESSIONS = 4
NEVER_LED = Led(())
COPY_OF_CONTROLLER = (0, 0, 1)


def explore(bounds: Bounds, *, states_max: int | None = None) -> tuple[int, list[str]]:
    """Returns how many states there are, and the shortest way to one that is damaged; empty where none is."""
    first = Copy(NEVER_LED if bounds.unled else Led(moving_to=1 if bounds.asked else -1))
    serving = (-1 if bounds.unled else 0, -1, -1, -1)
    begin = State((first, None), batches=(None,) * bounds.numbers, serving=serving, elections_left=bounds.elections)
    came_from: dict[State, tuple[State, str] | None] = {begin: None}
    left = deque([begin])
    while left and (states_max is None or len(came_from) < states_max):
        state = left.popleft()
        for name, after in steps(state, bounds):
            if after not in came_from:
                came_from[after] = state, name
                if after.damage:
                    return len(came_from), [*_way_to(after, came_from), after.damage]
                left.append(after)
    return len(came_from), []


def _way_to(state: State, came_from: dict[State, tuple[State, str] | None]) -> list[str]:
    way: list[str] = []
    while (step := came_from[state]) is not None:
        state, name = step
        way.append(name)
    return way[::-1]


def steps(state: State, bounds: Bounds) -> Iterator[tuple[str, State]]:
    if bounds.copied and state.copies[1] is None:
        made = state.copies[0]._replace(controller=-1, registered=state.copies[0].registered | 0b100)
        yield "the metadata are copied", state._replace(copies=(state.copies[0], made))
    for which, copy in enumerate(state.copies):
        if copy is not None:
            yield from _copy_steps(state, which, copy, bounds)
    for session in range(SESSIONS):
        yield from _session_steps(state, session, bounds)
    for index, controller in enumerate(state.controllers):
        if controller.do is not Do.GONE and state.copies[COPY_OF_CONTROLLER[index]] is not None:
            for what, after in _controller_steps(state, index, bounds):
                yield f"controller {index} of copy {'AB'[COPY_OF_CONTROLLER[index]]}: {what}", after


# ── what happens by itself ──────────────────────────────────────────────────────────────────────────────────────────────────


def _copy_steps(state: State, which: int, copy: Copy, bounds: Bounds) -> Iterator[tuple[str, State]]:
    name = "AB"[which]
    for session in {*(span.session for span in copy.led.spans[-1:]), copy.led.moving_to} - {-1}:  # nothing else is of interest
        if copy.registered & 1 << session:
            gone = _with_copy(state, which, copy._replace(registered=copy.registered & ~(1 << session)))
            yield f"session {session} is sealed by {name}", _sealed(gone, 1 << session)
    if which == 0 and bounds.newcomer and not state.begun & 0b1000:
        joined = _with_copy(state, which, copy._replace(registered=copy.registered | 0b1000))
        yield "session 3 begins in A", joined._replace(begun=joined.begun | 0b1000)
    for index, controller in enumerate(state.controllers):
        if COPY_OF_CONTROLLER[index] != which or copy.controller == index or controller.do is Do.GONE:
            continue
        if copy.controller == -1 and index != 1 and (which == 0 or bounds.led_copy):
            yield f"controller {index} is elected in {name}", _with_copy(state, which, copy._replace(controller=index))
        elif copy.controller != -1 and state.elections_left:
            # What it sent before its election may come later than the election.
            again = _with_copy(state, which, copy._replace(controller=index))
            yield f"controller {index} is elected in {name}", again._replace(elections_left=state.elections_left - 1)


def _session_steps(state: State, session: int, bounds: Bounds) -> Iterator[tuple[str, State]]:
    bit = 1 << session
    unread = state.serving[session]
    if unread >= 0 and not state.sealed & bit:
        if unread:
            yield f"session {session} writes", state._replace(damage="it had not read what others wrote before")
        else:
            serving = tuple(u | bit if u >= 0 and s != session else u for s, u in enumerate(state.serving))
            yield f"session {session} writes", state._replace(wrote=state.wrote | bit, serving=serving)
    which = 1 if session == 2 or (session in bounds.leaves and state.copies[1] is not None) else 0
    copy = state.copies[which]
    if copy is None:
        return
    spans = copy.led.spans
    if not spans or spans[-1].session != session or spans[-1].is_released:
        return
    if unread < 0 and not state.sealed & bit and copy.led.moving_to == -1:
        sealed, read = state.sealed, bit
        for span in spans[:-1]:
            read |= 1 << span.session
            if not span.is_released:
                sealed |= 1 << span.session
        after = _with_serving(_sealed(state, sealed), session, state.wrote & ~read)
        yield f"session {session} takes over in epoch {spans[-1].epoch}", after
    if copy.led.moving_to >= 0:
        released = (*spans[:-1], spans[-1]._replace(is_released=True), Span(spans[-1].epoch + 1, copy.led.moving_to))
        after = _with_serving(_with_copy(state, which, copy._replace(led=Led(released))), session, -1)
        yield f"session {session} hands over to {copy.led.moving_to} in {'AB'[which]}", after


# ── what controllers do ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _controller_steps(state: State, index: int, bounds: Bounds) -> Iterator[tuple[str, State]]:
    own, which, broken = state.controllers[index], COPY_OF_CONTROLLER[index], bounds.broken
    copy = state.copies[which]
    assert copy is not None, "its copy exists"
    leads = copy.controller == index
    unchanged = leads and (copy.number, copy.pending) == (own.number, own.pending)

    def now(do: Do, **changes: object) -> State:
        return _with_controller(state, index, own._replace(do=do, **changes))  # type: ignore[arg-type]

    def again() -> State:
        return _with_controller(state, index, Controller())

    match own.do:
        case Do.READ:
            if leads and copy.number < bounds.numbers:
                yield "reads", now(Do.LIST, number=copy.number, pending=copy.pending)
        case Do.LIST:
            if any(batch is not None for batch in state.batches[own.number + 1 :]):
                yield "lists later batches", _foreign(state, index, bounds)
            elif (batch := state.batches[own.number]) is None:
                yield "lists nothing", now(Do.PLAN)
            elif batch.nonce in own.pending:
                is_first = batch.content is not None and _is_first(batch.content)
                is_skipped = broken is Break.NOT_REPLAYED or (is_first and broken is Break.FIRST_LEADER_SKIPPED)
                planned = {} if is_skipped else {"planned_on": batch.planned_on, "content": batch.content}
                yield f"lists batch {own.number + 1} of this copy", now(Do.APPLY, **planned)
            else:
                yield f"lists batch {own.number + 1} of another copy", _foreign(state, index, bounds)
        case Do.PLAN:
            # The cache has what was applied up to the number; leaders may have handed over since.
            if not leads:
                return
            for what, content in _plans(state, copy, broken):
                if broken is Break.NOT_NUMBERED:
                    yield what, _with_copy(state, which, copy._replace(led=content))
                else:
                    yield (
                        what,
                        now(Do.NOTE, planned_on=copy.led if broken is Break.SKIPPED_WHERE_CHANGED else None, content=content),
                    )
            if bounds.idle_batches:
                yield "plans for others", now(Do.NOTE)
        case Do.NOTE:
            if not unchanged:
                yield "does not note", again()
            else:
                nonce = index + 10 * sum(noted % 10 == index for noted in copy.pending)
                pending = (*copy.pending, nonce)
                noted = _with_copy(now(Do.CREATE, nonce=nonce, pending=pending), which, copy._replace(pending=pending))
                yield f"notes nonce {nonce}", noted
        case Do.CREATE:
            if state.batches[own.number] is not None:
                yield f"meets batch {own.number + 1}", again()
            else:
                batch = Batch(own.nonce, own.planned_on, own.content)
                batches = (*state.batches[: own.number], batch, *state.batches[own.number + 1 :])
                following = Do.APPLY if broken is Break.COLLECTED_UNLOOKED else Do.LOOK_BEYOND
                yield f"creates batch {own.number + 1}", now(following)._replace(batches=batches)
        case Do.LOOK_BEYOND:
            if any(batch is not None for batch in state.batches[own.number + 1 :]):
                yield "finds later batches", _foreign(state, index, bounds)
            else:
                yield "finds no later batch", now(Do.APPLY)
        case Do.APPLY:
            if not unchanged:
                yield "does not apply", again()
            else:
                led = _applied(copy.led, own, broken)
                yield (
                    f"applies batch {own.number + 1}",
                    _with_copy(now(Do.ADVANCE, planned_on=None, content=None), which, copy._replace(led=led)),
                )
        case Do.ADVANCE:
            if not unchanged:
                yield "does not advance", again()
            else:
                advanced = _with_copy(again(), which, copy._replace(number=own.number + 1, pending=()))
                yield f"advances to {own.number + 1}", _collected(advanced, own.number)
        case Do.CONFIRM:
            if unchanged:
                yield "ends", _ended(_with_controller(state, index, Controller(Do.GONE)), bounds)
            else:
                yield "looks again", again()
        case _:
            raise AssertionError(own.do)


def _plans(state: State, copy: Copy, broken: Break) -> Iterator[tuple[str, Led]]:
    spans, moving_to = copy.led
    if not spans:
        for session in range(SESSIONS):
            if copy.registered & 1 << session:
                yield f"plans to appoint {session} as the first leader", Led((Span(0, session),))
        return
    leader, epoch = spans[-1].session, spans[-1].epoch
    others = [s for s in range(SESSIONS) if copy.registered & 1 << s and s != leader]
    if copy.registered & 1 << leader:
        if moving_to == -1:
            for session in others:
                yield f"plans to ask {leader} to hand over to {session}", Led(spans, session)
        elif broken is Break.TAKEN_BACK:
            yield f"plans to let {leader} keep it", Led(spans)
        return
    if not state.sealed & 1 << leader:
        return
    if moving_to >= 0 and broken is not Break.TARGET_FORGOTTEN:
        if copy.registered & 1 << moving_to:
            yield f"plans to appoint {moving_to} after {leader}", Led((*spans, Span(epoch + 1, moving_to)))
            return
        if not state.sealed & 1 << moving_to:
            return
        if broken is not Break.TARGET_UNREAD:
            epoch += 1
            spans = (*spans, Span(epoch, moving_to))
    for session in others:
        yield f"plans to appoint {session} after {leader}", Led((*spans, Span(epoch + 1, session)))


def _applied(led: Led, own: Controller, broken: Break) -> Led:
    """The state once the batch is applied: as planned, behind what a leader has done since."""
    if own.content is None or own.content == led:
        return led
    if broken is Break.SKIPPED_WHERE_CHANGED and led != own.planned_on:
        return led
    if not led.spans:
        return own.content if _is_first(own.content) else led
    epoch = led.spans[-1].epoch
    if epoch < own.content.spans[-1].epoch:
        later = tuple(span for span in own.content.spans if span.epoch > epoch)
        return Led((*led.spans, *later), own.content.moving_to)
    if epoch == own.content.spans[-1].epoch and (led.moving_to == -1 or broken is Break.TAKEN_BACK):
        return Led(led.spans, own.content.moving_to)
    return led


def _is_first(led: Led) -> bool:
    return len(led.spans) == 1 and led.moving_to == -1


def _foreign(state: State, index: int, bounds: Bounds) -> State:
    if bounds.broken is Break.UNCONFIRMED:
        return _ended(_with_controller(state, index, Controller(Do.GONE)), bounds)
    own = state.controllers[index]
    return _with_controller(state, index, Controller(Do.CONFIRM, own.number, own.pending))


def _ended(state: State, bounds: Bounds) -> State:
    return state if bounds.copied else state._replace(damage="the metadata exist once")


def _sealed(state: State, sessions: int) -> State:
    """Sealed sessions write no more."""
    serving = tuple(-1 if sessions & 1 << session else unread for session, unread in enumerate(state.serving))
    return state._replace(sealed=state.sealed | sessions, serving=serving)


def _collected(state: State, number: int) -> State:
    """Without the batches before the newest one."""
    return state._replace(batches=((None,) * number) + state.batches[number:])


def _with_copy(state: State, which: int, copy: Copy) -> State:
    return state._replace(copies=(copy, state.copies[1]) if which == 0 else (state.copies[0], copy))


def _with_controller(state: State, index: int, controller: Controller) -> State:
    return state._replace(controllers=(*state.controllers[:index], controller, *state.controllers[index + 1 :]))


def _with_serving(state: State, session: int, unread: int) -> State:
    return state._replace(serving=(*state.serving[:session], unread, *state.serving[session + 1 :]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--numbers", type=int, default=2)
    parser.add_argument("--elections", type=int, default=1)
    parser.add_argument("--leaves", type=int, nargs="*", default=[], help="of sessions 0 and 1, those that use the copy")
    parser.add_argument("--idle-batches", action="store_true")
    parser.add_argument("--newcomer", action="store_true")
    parser.add_argument("--asked", action="store_true")
    parser.add_argument("--no-controller-of-b", dest="led_copy", action="store_false")
    parser.add_argument("--unled", action="store_true", help="the partition begins without a leader")
    parser.add_argument("--once", action="store_true", help="the metadata are never copied")
    parser.add_argument("--states-max", type=int)
    parser.add_argument("--break", dest="broken", type=Break, default=Break.NOTHING)
    given = parser.parse_args()
    bounds = Bounds(
        given.numbers,
        given.elections,
        not given.once,
        tuple(given.leaves),
        given.idle_batches,
        given.newcomer,
        given.asked,
        given.led_copy,
        given.unled,
        given.broken,
    )
    count, way = explore(bounds, states_max=given.states_max)
    print(f"{count:,} states", *way, sep="\n  ")


if __name__ == "__main__":
    main()
