"""Explores what a losing copy of the metadata leaves on the bucket: snapshots, marks of deletions, registrations. Pure.

    copy A, copy B   how far it is in the batches; its revision; whether it has the topics `old` (from before the copy) and `new`
    controllers      two of A, which may depose each other, and one of B; each step is one request or one transaction
    bucket           who created each batch; snapshots; who marked `old` as deleted; registrations of `new`
    restore          may run at any instant: the invariants are checked in each state

The copy is made at any step. The revision of either copy may be far ahead: an etcd was restored with `--bump-revision`, or has had
many commits. Batches are without content here: tests/simulation/appointments_model.py explores what they appoint. A copy has lost
once the next batch carries a nonce that the copy has not noted.

Invariants: a restore never prefers the snapshot of a copy that has lost to one of the winner; that snapshot keeps no broker of the
winner from starting; no topic that the winner has is marked as deleted; no topic is registered that the winner does not have; a
restore reports each topic of the winner that it drops.

    python -m tests.simulation.snapshots_model                        explores all of it
    python -m tests.simulation.snapshots_model --break by-revision    shows the shortest way to the damage
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol


class Break(Enum):
    """One rule each that is not kept. The model must find what it leads to."""

    NOTHING = "nothing"
    # Snapshots are ordered by their revision alone.
    BY_REVISION = "by-revision"
    # A controller looks for batches of others before a snapshot, and writes none itself.
    SNAPSHOT_UNPROVEN = "snapshot-unproven"
    # The same before a mark of a deletion.
    MARK_UNPROVEN = "mark-unproven"
    # A controller registers a topic once it has found no batches of others, and writes none itself.
    REGISTER_UNPROVEN = "register-unproven"
    # Topics that were deleted after the nonce was noted are marked, too.
    MARKED_LATE = "marked-late"
    # A restore reports no topic that the snapshot does not name.
    UNREPORTED = "unreported"


@dataclass(frozen=True, slots=True)
class Bounds:
    # Batches; a controller that needs more takes no more steps.
    numbers: int = 2
    # Besides the first one of each copy.
    elections: int = 0
    # Added to the revision of B when the copy is made; below 0, to that of A.
    raised: int = 10
    # What a controller does with the bucket: snapshots, marks, the registration and the first leaders of `new`.
    tasks: tuple[Task, ...] = ()
    broken: Break = Break.NOTHING


class Task(Enum):
    SNAPSHOT = "a snapshot"
    MARK = "a mark"
    REGISTER = "a registration"
    BEGIN = "the first leader of new"


class Copy(NamedTuple):
    number: int = 0
    pending: tuple[int, ...] = ()
    revision: int = 1
    has_old: bool = True
    # The revision that made the topic `new`; 0 where it does not exist.
    new_at: int = 0
    controller: int = -1

    @property
    def has_new(self) -> bool:
        return self.new_at > 0


class Do(IntEnum):
    READ = 0
    LIST = 1
    REGISTER = 2
    NOTE = 3
    CREATE = 4
    ADVANCE = 5
    READ_ALL = 6
    WRITE_SNAPSHOT = 7
    WRITE_MARK = 8
    GONE = 9


class Snapshot(NamedTuple):
    # Of the last batch that is applied.
    number: int
    revision: int
    has_new: bool
    # The copy that wrote it; -1 for one from before the metadata were copied.
    of: int


class Controller(NamedTuple):
    do: Do = Do.READ
    number: int = 0
    pending: tuple[int, ...] = ()
    nonce: int = -1
    task: Task | None = None
    read: Snapshot | None = None


class State(NamedTuple):
    copies: tuple[Copy, Copy | None] = (Copy(), None)
    controllers: tuple[Controller, ...] = (Controller(), Controller(), Controller())
    # Their nonces.
    batches: tuple[int, ...] = ()
    snapshots: frozenset[Snapshot] = frozenset()
    # The copies that marked `old` as deleted.
    marked_by: frozenset[int] = frozenset()
    # Revisions of the registrations of `new`.
    registered: frozenset[int] = frozenset()
    # Whether `new` may hold records: its first leader is appointed.
    begun: bool = False
    creations_left: int = 1
    deletions_left: int = 1
    elections_left: int = 0


COPY_OF_CONTROLLER = (0, 0, 1)


def explore(bounds: Bounds) -> tuple[int, list[str]]:
    """Returns how many states there are, and the shortest way to one that is damaged; empty where none is."""
    begin = State(elections_left=bounds.elections)
    came_from: dict[State, tuple[State, str] | None] = {begin: None}
    left = deque([begin])
    while left:
        state = left.popleft()
        for name, after in steps(state, bounds):
            if after in came_from:
                continue
            came_from[after] = state, name
            if damage := damage_of(after, bounds):
                return len(came_from), [*_way_to(after, came_from), damage]
            left.append(after)
    return len(came_from), []


def _way_to(state: State, came_from: dict[State, tuple[State, str] | None]) -> list[str]:
    way: list[str] = []
    while (step := came_from[state]) is not None:
        state, name = step
        way.append(name)
    return way[::-1]


# ── what a restore and a starting broker find ───────────────────────────────────────────────────────────────────────────────


def damage_of(state: State, bounds: Bounds) -> str:
    """Returns what is wrong with the bucket as it is now, in a sentence."""
    winner = _winner(state)
    if winner is None:
        return ""
    copy = state.copies[winner]
    assert copy is not None, "the winner exists"
    best = max(state.snapshots, key=lambda snapshot: _order(snapshot, bounds), default=None)
    if best is not None and best.of == 1 - winner:
        if any(snapshot.of == winner for snapshot in state.snapshots):
            return "a restore prefers the snapshot of the copy that has lost"
        own = Snapshot(copy.number, copy.revision, copy.has_new, winner)
        if copy.number == len(state.batches) and _order(best, bounds) > _order(own, bounds):
            return "no broker of the winner starts"
    if copy.has_old and state.marked_by:
        return "a topic of the winner is marked as deleted"
    if state.registered and not copy.has_new:
        return "a topic is registered that the winner does not have"
    if copy.has_new and state.begun and not _is_restored_or_reported(state, best, bounds):
        return "a topic of the winner is dropped without a finding"
    return ""


def _winner(state: State) -> int | None:
    """Returns the copy that goes on, where the other one has lost."""
    lost = [which for which, copy in enumerate(state.copies) if copy is not None and _has_lost(state, copy)]
    return 1 - lost[0] if len(lost) == 1 and state.copies[1 - lost[0]] is not None else None


def _has_lost(state: State, copy: Copy) -> bool:
    return len(state.batches) > copy.number and state.batches[copy.number] not in copy.pending


def _order(snapshot: Snapshot, bounds: Bounds) -> tuple[int, int]:
    return (0 if bounds.broken is Break.BY_REVISION else snapshot.number, snapshot.revision)


def _is_restored_or_reported(state: State, best: Snapshot | None, bounds: Bounds) -> bool:
    """Of the topic `new`, as in tidelog/bucket/restore_plan.py."""
    if best is not None and best.has_new:
        return True
    newest = max(state.registered, default=0)
    if newest > (best.revision if best is not None else 0):
        return True
    return bool(newest) and bounds.broken is not Break.UNREPORTED


# ── what happens by itself ──────────────────────────────────────────────────────────────────────────────────────────────────


def steps(state: State, bounds: Bounds) -> Iterator[tuple[str, State]]:
    if state.copies[1] is None:
        left = state.copies[0]._replace(revision=state.copies[0].revision + max(0, -bounds.raised))
        made = state.copies[0]._replace(controller=-1, revision=state.copies[0].revision + max(0, bounds.raised))
        before = frozenset(snapshot._replace(of=-1) for snapshot in state.snapshots)
        yield "the metadata are copied", state._replace(copies=(left, made), snapshots=before)
    for which, copy in enumerate(state.copies):
        if copy is not None:
            yield from _copy_steps(state, which, copy, bounds)
    for index, controller in enumerate(state.controllers):
        if controller.do is not Do.GONE and state.copies[COPY_OF_CONTROLLER[index]] is not None:
            for what, after in _controller_steps(state, index, bounds):
                yield f"controller {index} of copy {'AB'[COPY_OF_CONTROLLER[index]]}: {what}", after


def _copy_steps(state: State, which: int, copy: Copy, bounds: Bounds) -> Iterator[tuple[str, State]]:
    name = "AB"[which]
    if Task.MARK in bounds.tasks and copy.has_old and state.deletions_left:
        deleted = _with_copy(state, which, copy._replace(has_old=False, revision=copy.revision + 1))
        yield f"topic old is deleted in {name}", deleted._replace(deletions_left=state.deletions_left - 1)
    if Task.REGISTER in bounds.tasks and not copy.has_new and state.creations_left:
        made = _with_copy(state, which, copy._replace(new_at=copy.revision + 1, revision=copy.revision + 1))
        yield f"topic new is made in {name}", made._replace(creations_left=state.creations_left - 1)
    for index, controller in enumerate(state.controllers):
        if COPY_OF_CONTROLLER[index] != which or copy.controller == index or controller.do is Do.GONE:
            continue
        if copy.controller == -1 and index != 1:
            yield f"controller {index} is elected in {name}", _with_copy(state, which, copy._replace(controller=index))
        elif copy.controller != -1 and state.elections_left:
            again = _with_copy(state, which, copy._replace(controller=index))
            yield f"controller {index} is elected in {name}", again._replace(elections_left=state.elections_left - 1)


# ── what controllers do ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _controller_steps(state: State, index: int, bounds: Bounds) -> Iterator[tuple[str, State]]:
    own, which = state.controllers[index], COPY_OF_CONTROLLER[index]
    copy = state.copies[which]
    assert copy is not None, "its copy exists"
    unchanged = copy.controller == index and (copy.number, copy.pending) == (own.number, own.pending)

    def now(do: Do, **changes: object) -> State:
        return _with_controller(state, index, own._replace(do=do, **changes))  # type: ignore[arg-type]

    def again() -> State:
        return _with_controller(state, index, Controller())

    match own.do:
        case Do.READ:
            if copy.controller == index:
                yield "reads", now(Do.LIST, number=copy.number, pending=copy.pending)
        case Do.LIST:
            if len(state.batches) == own.number:
                yield from _tasks(state, copy, now, bounds)
            elif state.batches[own.number] in own.pending and len(state.batches) == own.number + 1:
                yield f"lists batch {own.number + 1} of this copy", now(Do.ADVANCE)
            elif unchanged:
                yield "finds a batch of another copy, and ends", now(Do.GONE)
            else:
                yield "looks again", again()
        case Do.REGISTER:
            yield "registers new", again()._replace(registered=state.registered | {copy.new_at})
        case Do.NOTE:
            if not unchanged:
                yield "does not note", again()
            elif own.number < bounds.numbers:
                nonce = index + 10 * own.number + 100 * sum(noted % 10 == index for noted in copy.pending)
                pending = (*copy.pending, nonce)
                noted = copy._replace(pending=pending, revision=copy.revision + 1)
                yield f"notes nonce {nonce}", _with_copy(now(Do.CREATE, nonce=nonce, pending=pending), which, noted)
        case Do.CREATE:
            if len(state.batches) > own.number:
                yield f"meets batch {own.number + 1}", again()
            else:
                yield f"creates batch {own.number + 1}", now(Do.ADVANCE)._replace(batches=(*state.batches, own.nonce))
        case Do.ADVANCE:
            if not unchanged:
                yield "does not advance", again()
            else:
                advanced = copy._replace(number=own.number + 1, pending=(), revision=copy.revision + 1)
                if own.task is Task.SNAPSHOT:
                    then = now(Do.READ_ALL)
                elif own.task is Task.MARK and not copy.has_old:
                    then = now(Do.WRITE_MARK)
                elif own.task is Task.REGISTER:
                    then = now(Do.REGISTER)
                else:
                    then = again()
                begun = state.begun or own.task is Task.BEGIN
                yield f"advances to {own.number + 1}", _with_copy(then, which, advanced)._replace(begun=begun)
        case Do.READ_ALL:
            of = which if state.copies[1] is not None else -1  # before, it is of both
            read = Snapshot(copy.number, copy.revision, copy.has_new, of)
            yield "reads all keys", now(Do.WRITE_SNAPSHOT, read=read)
        case Do.WRITE_SNAPSHOT:
            assert own.read is not None, "it was read"
            yield "writes a snapshot", again()._replace(snapshots=state.snapshots | {own.read})
        case Do.WRITE_MARK:
            yield "marks old as deleted", again()._replace(marked_by=state.marked_by | {which})
        case _:
            raise AssertionError(own.do)


def _tasks(state: State, copy: Copy, now: Now, bounds: Bounds) -> Iterator[tuple[str, State]]:
    """What a controller begins that has found no later batch. Whatever it is about was decided before its nonce is noted."""
    broken = bounds.broken
    yield "plans appointments of others", now(Do.NOTE, task=None)
    if Task.SNAPSHOT in bounds.tasks:
        yield "plans a snapshot", now(Do.READ_ALL if broken is Break.SNAPSHOT_UNPROVEN else Do.NOTE, task=Task.SNAPSHOT)
    if Task.MARK in bounds.tasks and (not copy.has_old or broken is Break.MARKED_LATE):
        yield "plans a mark", now(Do.WRITE_MARK if broken is Break.MARK_UNPROVEN else Do.NOTE, task=Task.MARK)
    if Task.REGISTER in bounds.tasks and copy.has_new and copy.new_at not in state.registered:
        yield "plans a registration", now(Do.REGISTER if broken is Break.REGISTER_UNPROVEN else Do.NOTE, task=Task.REGISTER)
    if Task.BEGIN in bounds.tasks and copy.has_new and copy.new_at in state.registered:
        yield "plans the first leader of new", now(Do.NOTE, task=Task.BEGIN)


class Now(Protocol):
    """The type of `now` in `_controller_steps`."""

    def __call__(self, do: Do, **changes: object) -> State: ...


def _with_copy(state: State, which: int, copy: Copy) -> State:
    return state._replace(copies=(copy, state.copies[1]) if which == 0 else (state.copies[0], copy))


def _with_controller(state: State, index: int, controller: Controller) -> State:
    return state._replace(controllers=(*state.controllers[:index], controller, *state.controllers[index + 1 :]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--numbers", type=int, default=2)
    parser.add_argument("--elections", type=int, default=0)
    parser.add_argument("--raised", type=int, default=10)
    parser.add_argument("--task", dest="tasks", type=Task, action="append", default=[])
    parser.add_argument("--break", dest="broken", type=Break, default=Break.NOTHING)
    given = parser.parse_args()
    tasks = tuple(given.tasks) or tuple(Task)
    count, way = explore(Bounds(given.numbers, given.elections, given.raised, tasks, given.broken))
    print(f"{count:,} states", *way, sep="\n  ")


if __name__ == "__main__":
    main()
