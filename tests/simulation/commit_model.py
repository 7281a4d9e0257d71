"""Explores every interleaving of the rule that makes a record committed, and checks its invariants. Pure.

One session and its succession, as small as they can be and still go wrong:

    writer      keeps several create-only PUTs in flight; sends the same bytes again while it has no answer (a retry and a
                hedged PUT are the same thing on the wire); gives up at a deadline and tries to seal that very place
    wire        a request may land at any later time, or never; its answer may be lost
    sealers     the first takes over once it has sealed: it rebuilds the log from the bucket and has what was never
                acknowledged written again in the next session. The others only seal, and race with it
    collector   compacts what is committed, moves the trim marker, deletes what lies below
    latecomer   a broker that was given this session's number a second time (its counter was restored from a backup)

A writer that stops for good, crashed or frozen, is a writer that takes no more steps: every such run is among those explored.
Batch n travels in segment n, and one log is enough, because a segment is committed for all its partitions at once.

That the PUT of a seal succeeded does not yet prove that the session ended there: the place may have been free because its
segment was compacted and deleted. So sealing needs a check afterwards: a sealer lists again until the first gap holds a seal, and
the writer asks whether the trim marker has passed the place.

    python -m tests.simulation.commit_model --segments 4 --sealers 2          explores more
    python -m tests.simulation.commit_model --break seal-is-deleted           shows the shortest way to the damage
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import NamedTuple


class Break(Enum):
    """One rule each that is not kept. The model must find what it leads to."""

    NOTHING = "nothing"
    SEAL_IS_DELETED = "seal-is-deleted"
    NO_TRIM_MARKER = "no-trim-marker"
    ACKNOWLEDGED_OUT_OF_ORDER = "acknowledged-out-of-order"
    UNKNOWN_IS_FAILURE = "unknown-is-failure"
    TAKEOVER_WITHOUT_SEAL = "takeover-without-seal"
    SEAL_TAKEN_AS_OWN = "seal-taken-as-own"
    ALL_REFUSED_AT_THE_SEAL = "all-refused-at-the-seal"
    SEAL_NOT_LOOKED_AT = "seal-not-looked-at"
    NO_CLAIM = "no-claim"


@dataclass(frozen=True, slots=True)
class Bounds:
    segments: int = 3
    # PUTs of different segments that the writer has under way.
    in_flight: int = 2
    # Times that the writer sends one segment again.
    resends: int = 1
    sealers: int = 1
    # Whether the writer may give up on a segment and seal its own session there.
    deadline: bool = True
    collector: bool = True
    latecomer: bool = False
    broken: Break = Break.NOTHING


class Object(IntEnum):
    NONE = 0
    SEGMENT = 1
    SEAL = 2


class Slot(NamedTuple):
    """One place of the session: what lies there, what is on its way there, and what the writer knows and said about it."""

    holds: Object = Object.NONE
    # Requests that may still land. All of them carry the same bytes.
    on_wire: int = 0
    resends_left: int = 0
    # The writer's deadline has passed: it no longer sends the segment, but a seal for this place.
    given_up: bool = False
    # The writer knows that its segment lies here.
    known: bool = False
    # The producer was answered that nothing was written, and that nothing ever will be.
    refused: bool = False


class Writer(NamedTuple):
    issued: int = 0
    # It knows of a seal, and issues nothing more. What lies before the seal is still to be made certain.
    ended: bool = False


class Sealer(NamedTuple):
    gap: int | None = None
    done: bool = False


class State(NamedTuple):
    # One more than there are segments: the last can only hold a seal.
    slots: tuple[Slot, ...]
    writer: Writer
    sealers: tuple[Sealer, ...]
    compacted: int = 0
    trim: int = 0
    # End of the log that the next session found, and where it began to write.
    resumed_at: int | None = None
    latecomer_acknowledged: bool = False


Step = tuple[str, State]


def first(bounds: Bounds) -> State:
    empty = tuple(Slot(resends_left=bounds.resends) for _ in range(bounds.segments))
    return State((*empty, Slot()), Writer(), (Sealer(),) * bounds.sealers)


# The rule itself


def first_gap(s: State, bounds: Bounds) -> int:
    """The first place, from the trim point on, that holds no segment: the end of what a listing shows as committed."""
    n = 0 if bounds.broken is Break.NO_TRIM_MARKER else s.trim
    while n < len(s.slots) and s.slots[n].holds is Object.SEGMENT:
        n += 1
    return n


def visible_end(s: State, bounds: Bounds) -> int:
    """Batches 0 … end-1 of this session are readable: from compacted files, or from segments."""
    return max(s.compacted, first_gap(s, bounds))


def acknowledged(s: State, bounds: Bounds) -> list[int]:
    """The batches whose acknowledgement the writer may have sent by now: each as early as its rule permits.

    Later would be no harder: what is visible stays so, which is checked at every step.
    """
    known = [n for n in range(bounds.segments) if s.slots[n].known]
    if bounds.broken is Break.ACKNOWLEDGED_OUT_OF_ORDER:
        return known
    end = 0
    while end < bounds.segments and s.slots[end].known:
        end += 1
    return list(range(end))


# Who may do what next


def steps(s: State, bounds: Bounds) -> Iterator[Step]:
    yield from _writer(s, bounds)
    for n in range(s.writer.issued):
        yield from _requests_land(s, bounds, n)
        if s.slots[n].given_up and not s.slots[n].known and not s.slots[n].refused:
            yield from _writers_seal_lands(s, bounds, n)
    for i in range(len(s.sealers)):
        yield from _sealer(s, bounds, i)
    yield from _next_session(s, bounds)
    if bounds.collector:
        yield from _collector(s, bounds)
    if bounds.latecomer:
        yield from _latecomer(s, bounds)


def _writer(s: State, bounds: Bounds) -> Iterator[Step]:
    writer = s.writer
    open_seqs = [n for n in range(writer.issued) if not s.slots[n].known and not s.slots[n].refused]
    if not writer.ended and writer.issued < bounds.segments and len(open_seqs) < bounds.in_flight:
        sent = _with_slot(s, writer.issued, on_wire=1)
        yield f"the writer sends segment {writer.issued}", sent._replace(writer=writer._replace(issued=writer.issued + 1))
    for n in open_seqs:
        slot = s.slots[n]
        if slot.given_up:
            continue
        if slot.resends_left:
            again = _with_slot(s, n, on_wire=slot.on_wire + 1, resends_left=slot.resends_left - 1)
            yield f"the writer sends segment {n} again", again
        if bounds.deadline:
            yield f"the writer gives up on segment {n}, and sends a seal for its place", _with_slot(s, n, given_up=True)
        if bounds.broken is Break.UNKNOWN_IS_FAILURE:
            yield f"the writer takes segment {n} for failed and says so", _with_slot(s, n, refused=True)


def _requests_land(s: State, bounds: Bounds, n: int) -> Iterator[Step]:
    slot = s.slots[n]
    if not slot.on_wire:
        return
    landed = _with_slot(s, n, on_wire=slot.on_wire - 1, holds=slot.holds or Object.SEGMENT)
    yield f"a request for segment {n} lands, the answer is lost", landed
    if slot.holds is not Object.SEAL:
        answer = "created" if slot.holds is Object.NONE else "412, and reads its own"
        yield f"a request for segment {n} lands: the writer gets {answer}", _with_slot(landed, n, known=True)
    elif bounds.broken is Break.SEAL_TAKEN_AS_OWN:
        yield (
            f"a request for segment {n} lands: the writer gets 412, and takes it for its own",
            _with_slot(landed, n, known=True),
        )
    else:
        yield (
            f"a request for segment {n} lands: the writer gets 412, and reads a seal",
            _writer_learns_of_seal(landed, bounds, n),
        )


def _writers_seal_lands(s: State, bounds: Bounds, n: int) -> Iterator[Step]:
    """The writer sends it until it is answered, so it may land as often as it likes."""
    if s.slots[n].holds is Object.SEGMENT:
        yield f"the writer's seal gets 412 at {n}, and reads its own segment", _with_slot(s, n, known=True)
        return
    sealed = _with_slot(s, n, holds=Object.SEAL)
    if s.slots[n].holds is Object.NONE:
        yield f"the writer's seal lands at {n}, the answer is lost", sealed
    yield f"the writer knows of a seal at {n}", _writer_learns_of_seal(sealed, bounds, n)


def _writer_learns_of_seal(s: State, bounds: Bounds, n: int) -> State:
    """It tells every producer from there on that nothing was written. What lies before stays open until it is certain."""
    if n < s.trim and bounds.broken is not Break.SEAL_NOT_LOOKED_AT:
        return _with_slot(s, n, known=True)  # the segment was committed, compacted and deleted before
    start = len(acknowledged(s, bounds)) if bounds.broken is Break.ALL_REFUSED_AT_THE_SEAL else n
    for seq in range(start, s.writer.issued):
        s = _with_slot(s, seq, refused=True)
    return s._replace(writer=s.writer._replace(ended=True))


def _sealer(s: State, bounds: Bounds, i: int) -> Iterator[Step]:
    sealer, name = s.sealers[i], f"sealer {i + 1}"
    if sealer.done:
        return
    gap = first_gap(s, bounds)
    if s.slots[gap].holds is Object.SEAL:
        yield f"{name} looks: the session ended at {gap}", _with_sealer(s, i, Sealer(done=True))
    elif sealer.gap != gap:
        yield f"{name} looks: the first gap is {gap}", _with_sealer(s, i, Sealer(gap=gap))
    if sealer.gap is not None and s.slots[sealer.gap].holds is Object.NONE:
        sealed = _with_slot(s, sealer.gap, holds=Object.SEAL)
        yield f"the seal of {name} lands at {sealer.gap}", sealed
        if bounds.broken is Break.SEAL_NOT_LOOKED_AT:
            yield f"the seal of {name} at {sealer.gap} is answered", _with_sealer(sealed, i, Sealer(done=True))


def _next_session(s: State, bounds: Bounds) -> Iterator[Step]:
    """The first sealer takes over: another broker, or the writer's own in a new session."""
    sealed = bool(s.sealers) and (s.sealers[0].done or bounds.broken is Break.TAKEOVER_WITHOUT_SEAL)
    if sealed and s.resumed_at is None:
        end = visible_end(s, bounds)
        yield f"the next session finds the log's end at {end}, and writes the rest again", s._replace(resumed_at=end)


def _collector(s: State, bounds: Bounds) -> Iterator[Step]:
    end = first_gap(s, bounds)
    if end > s.compacted:
        yield f"the collector compacts up to {end}", s._replace(compacted=end)
    if s.compacted > s.trim:
        yield f"the collector moves the trim marker to {s.compacted}", s._replace(trim=s.compacted)
    for n, slot in enumerate(s.slots):
        seal_goes_too = bounds.broken is Break.SEAL_IS_DELETED and slot.holds is Object.SEAL
        if (slot.holds is Object.SEGMENT and n < s.trim) or seal_goes_too:
            yield f"the collector deletes {'the seal' if seal_goes_too else 'segment'} {n}", _with_slot(s, n, holds=Object.NONE)


def _latecomer(s: State, bounds: Bounds) -> Iterator[Step]:
    """With the claim in place it moves on to another number, and this session never hears of it."""
    if bounds.broken is Break.NO_CLAIM and not s.latecomer_acknowledged and s.slots[0].holds is Object.NONE:
        created = _with_slot(s, 0, holds=Object.SEGMENT)
        yield "the latecomer's segment 0 is created, and acknowledged", created._replace(latecomer_acknowledged=True)


def _with_slot(s: State, n: int, **changes: object) -> State:
    slots = list(s.slots)
    slots[n] = slots[n]._replace(**changes)  # type: ignore[arg-type]  # names and types are those of Slot
    return s._replace(slots=tuple(slots))


def _with_sealer(s: State, i: int, sealer: Sealer) -> State:
    return s._replace(sealers=(*s.sealers[:i], sealer, *s.sealers[i + 1 :]))


# What must hold


def broken_in(s: State, end: int, bounds: Bounds) -> str | None:
    """The invariant (docs/design/README.md) that this state breaks, and how; or None. `end` is its `visible_end`."""
    lost = [n for n in acknowledged(s, bounds) if n >= end]
    if lost:
        return f"durable: batches {lost} are acknowledged, and only the first {end} are readable"
    if s.latecomer_acknowledged and s.trim > 0:
        return "durable: the latecomer's segment is acknowledged and lies below the trim marker, where no reader looks"
    lies = [n for n in range(end) if s.slots[n].refused]
    if lies:
        return f"truthful: batches {lies} are readable, and their producer was answered that nothing was written"
    if s.resumed_at is not None and end > s.resumed_at:
        return f"unique: offset {s.resumed_at} has a record in this session, and another one in the next"
    return None


def broken_by(was_end: int, was_sealed: bool, end: int) -> str | None:
    """The invariant that a step breaks which takes the readable batches from `was_end` to `end`."""
    if end < was_end:
        return f"prefix: {was_end} batches were readable, now {end} are"
    if was_sealed and end > was_end:
        return f"fenced: batches {list(range(was_end, end))} became readable after the seal"
    return None


class Outcome(NamedTuple):
    states: int
    violated: str | None
    # The shortest way there from the beginning; empty where everything holds.
    steps: tuple[str, ...]


class _Visit(NamedTuple):
    end: int
    before: State | None
    step: str


def explore(bounds: Bounds) -> Outcome:
    """Breadth first over all reachable states, to the end or to the first violation."""
    start = first(bounds)
    visited = {start: _Visit(0, None, "")}
    frontier = [start]
    while frontier:
        reached: list[State] = []
        for state in frontier:
            end = visited[state].end
            gap = first_gap(state, bounds)
            sealed = gap < len(state.slots) and state.slots[gap].holds is Object.SEAL
            for step, following in steps(state, bounds):
                visit = visited.get(following)
                violated = None
                if visit is None:
                    visit = visited[following] = _Visit(visible_end(following, bounds), state, step)
                    reached.append(following)
                    violated = broken_in(following, visit.end, bounds)
                violated = broken_by(end, sealed, visit.end) or violated
                if violated:
                    return Outcome(len(visited), violated, (*_path(visited, state), step))
        frontier = reached
    return Outcome(len(visited), None, ())


def _path(visited: dict[State, _Visit], state: State) -> list[str]:
    names: list[str] = []
    while (before := visited[state].before) is not None:
        names.append(visited[state].step)
        state = before
    return names[::-1]


def main(arguments: list[str]) -> int:
    """0 when everything holds (or, with --break, when the damage was found), else 1."""
    defaults = Bounds()
    parser = argparse.ArgumentParser(prog="commit_model", description="Explores every interleaving of the commit rule.")
    parser.add_argument("--segments", type=int, default=defaults.segments)
    parser.add_argument("--in-flight", type=int, default=defaults.in_flight)
    parser.add_argument("--resends", type=int, default=defaults.resends)
    parser.add_argument("--sealers", type=int, default=defaults.sealers)
    parser.add_argument("--no-collector", action="store_true")
    parser.add_argument("--no-deadline", action="store_true")
    parser.add_argument("--break", dest="broken", choices=[rule.value for rule in Break], default=Break.NOTHING.value)
    given = parser.parse_args(arguments)
    bounds = replace(
        defaults,
        segments=given.segments,
        in_flight=given.in_flight,
        resends=given.resends,
        sealers=given.sealers,
        deadline=not given.no_deadline,
        collector=not given.no_collector,
        latecomer=True,
        broken=Break(given.broken),
    )
    started_s = time.perf_counter()
    outcome = explore(bounds)
    print(f"{outcome.states:,} states in {time.perf_counter() - started_s:.1f} s")
    if outcome.violated is None:
        print("every invariant holds")
    else:
        print(f"VIOLATED {outcome.violated}")
        for number, step in enumerate(outcome.steps, 1):
            print(f"{number:4}. {step}")
    return int((outcome.violated is None) != (bounds.broken is Break.NOTHING))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
