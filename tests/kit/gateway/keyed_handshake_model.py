"""A small model of the handshake that writes a keyed request once: every interleaving of attempts, growth and a leader change.

A topic grows from SMALL to LARGE. The request has batches in partitions 0 and 1 where it is routed over SMALL, and in partition 2
where it is routed over LARGE. Partition 0 changes its leader: the next one is appointed, later seals the former one, and serves.
Another broker leads the other two partitions all the time.

    registry ─▶ views of the leaders and of the brokers that attempt the request, each as late as it likes
    attempt: ask the leaders what is written, in any order ─▶ route ─▶ messages, which arrive late, again and again, or never

The rules are those of gateway/records/keyed_produce.py, gateway/routing/local_log.py and gateway/cluster/proven_routing.py. Without
one of them a run ends in a world where the request is written twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

SMALL: Final = 0
LARGE: Final = 1
# A partition holds nothing of the request.
NOTHING: Final = -1
# A question has no answer yet, or nothing was read from the registry.
OPEN: Final = -2
ROUTES: Final = {SMALL: (0, 1), LARGE: (2,)}
ASKED: Final = {SMALL: (0, 1), LARGE: (0, 1, 2)}

FORMER: Final = 0
NEXT: Final = 1
# Leaders: of partition 0 before and after the change, and of the others.
OTHER: Final = 2


class Rule(Enum):
    REFUSES_FEWER = "a leader refuses a new batch that was routed over fewer partitions than it knows"
    LEADER_CATCHES_UP = "a leader answers only once it knows the topic as the asking broker does"
    IS_PROVEN = "a new leader reads the topic from the store, and takes and answers nothing before its view has seen that"
    PROVEN_AFTER_SEAL = "a new leader reads the topic after it has sealed the former one"
    IS_DOUBTED = "an answer counts only if its leader still leads after it has looked"
    IS_COMMITTED = "what was routed over another number of partitions is answered only once it is committed"


# Of partition 0: the next leader is named, and the former one writes and finds no seal; then it is sealed.
LED: Final = 0
APPOINTED: Final = 1
SEALED: Final = 2

Three = tuple[int, int, int]


class Attempt(NamedTuple):
    # How many partitions its broker knows; OPEN before it asks.
    asks_over: int = OPEN
    answers: Three = (OPEN, OPEN, OPEN)
    # What the former leader has found, before it is checked whether it still leads.
    unconfirmed: int = OPEN
    # Attempts that may begin.
    left: int = 1


class World(NamedTuple):
    registry: int = SMALL
    change: int = LED
    # Of each leader.
    views: Three = (SMALL, SMALL, SMALL)
    # The next leader.
    proven: bool = False
    # What the next leader has read from the registry, until its view has seen it.
    read: int = OPEN
    # By partition: over how many its batch was routed.
    pending: Three = (NOTHING, NOTHING, NOTHING)
    committed: Three = (NOTHING, NOTHING, NOTHING)
    # Partition, over how many it was routed, and whether it continues what is committed.
    messages: frozenset[tuple[int, int, bool]] = frozenset()
    attempts: tuple[Attempt, ...] = (Attempt(), Attempt())

    @property
    def is_written_twice(self) -> bool:
        return SMALL in self.committed and LARGE in self.committed


def steps(world: World, rules: frozenset[Rule]) -> Iterator[World]:
    """Every world that may come next."""
    if world.registry == SMALL:
        yield world._replace(registry=LARGE)
    else:
        for leader, view in enumerate(world.views):
            if view == SMALL:
                yield world._replace(views=_put(world.views, leader, LARGE))
    yield from _leader_change(world, rules)
    for partition, routed in enumerate(world.pending):
        if routed != NOTHING:
            committed = _put(world.committed, partition, routed)
            yield world._replace(pending=_put(world.pending, partition, NOTHING), committed=committed)
    for partition, routed, continues in world.messages:
        if _is_taken(world, partition, routed, continues, rules):
            yield world._replace(pending=_put(world.pending, partition, routed))
    for at, attempt in enumerate(world.attempts):
        if attempt.asks_over != OPEN:
            yield from _asks(world, at, attempt, rules)
        elif attempt.left:
            for count in {SMALL, world.registry}:
                yield _with(world, at, Attempt(count, left=attempt.left - 1))


def _leader_change(world: World, rules: frozenset[Rule]) -> Iterator[World]:
    if world.change == LED:
        yield world._replace(change=APPOINTED)
    elif world.change == APPOINTED:
        yield world._replace(
            change=SEALED, pending=_put(world.pending, 0, NOTHING), proven=world.proven or Rule.IS_PROVEN not in rules
        )
    may_read = world.change == SEALED or (world.change == APPOINTED and Rule.PROVEN_AFTER_SEAL not in rules)
    if may_read and not world.proven and world.read == OPEN:
        yield world._replace(read=world.registry)
    if world.read != OPEN and world.views[NEXT] >= world.read:
        yield world._replace(read=OPEN, proven=True)


def _leader(world: World, partition: int) -> int:
    if partition:
        return OTHER
    return NEXT if world.change == SEALED else FORMER


def _held(world: World, partition: int) -> int:
    return max(world.pending[partition], world.committed[partition])


def _is_taken(world: World, partition: int, routed: int, continues: bool, rules: frozenset[Rule]) -> bool:
    """Whether the leader takes a batch as a new one."""
    leader = _leader(world, partition)
    if _held(world, partition) != NOTHING or (leader == NEXT and not world.proven and not continues):
        return False
    return continues or routed == world.views[leader] or (routed < world.views[leader] and Rule.REFUSES_FEWER not in rules)


def _asks(world: World, at: int, attempt: Attempt, rules: frozenset[Rule]) -> Iterator[World]:
    count = attempt.asks_over
    if attempt.unconfirmed != OPEN:  # the former leader looks for its seal
        answers = _put(attempt.answers, 0, attempt.unconfirmed) if world.change != SEALED else attempt.answers
        yield _with(world, at, attempt._replace(unconfirmed=OPEN, answers=answers))
    open_ = [partition for partition in ASKED[count] if attempt.answers[partition] == OPEN]
    for partition in open_:
        if partition == 0 and attempt.unconfirmed != OPEN:
            continue
        leader = _leader(world, partition)
        yield from _answered(world, at, attempt, partition, leader, _held(world, partition), rules)
        if leader == NEXT and Rule.IS_DOUBTED not in rules:  # the former one does not know yet that it leads no more
            yield from _answered(world, at, attempt, partition, FORMER, NOTHING, rules)
    if not open_:
        written = [routed for routed in attempt.answers if routed not in (OPEN, NOTHING)]
        routed = written[0] if written else count
        sent = {(partition, routed, routed != count) for partition in ROUTES[routed]}
        yield _with(world, at, Attempt(left=attempt.left))._replace(messages=world.messages | sent)


def _answered(
    world: World, at: int, attempt: Attempt, partition: int, leader: int, found: int, rules: frozenset[Rule]
) -> Iterator[World]:
    view = world.views[leader]
    if leader == NEXT and not world.proven:
        return
    if view < attempt.asks_over and Rule.LEADER_CATCHES_UP in rules:
        return
    if found not in (NOTHING, view) and world.committed[partition] == NOTHING and Rule.IS_COMMITTED in rules:
        return
    if view > attempt.asks_over:  # the broker catches up, and asks all of them again
        yield _with(world, at, Attempt(LARGE, left=attempt.left))
    elif leader == FORMER and Rule.IS_DOUBTED in rules:
        yield _with(world, at, attempt._replace(unconfirmed=found))
    else:
        yield _with(world, at, attempt._replace(answers=_put(attempt.answers, partition, found)))


def _with(world: World, at: int, attempt: Attempt) -> World:
    """Attempts are alike, so their order does not matter."""
    return world._replace(attempts=tuple(sorted((attempt, *world.attempts[:at], *world.attempts[at + 1 :]))))


def _put(items: Three, at: int, item: int) -> Three:
    first, second, third = (item if index == at else each for index, each in enumerate(items))
    return first, second, third


def explore(rules: frozenset[Rule], *, attempts: tuple[Attempt, ...] = (Attempt(), Attempt())) -> tuple[World | None, int]:
    """The first world in which the request is written twice, if there is one, and how many worlds were looked at."""
    first = World(attempts=attempts)
    seen, ahead = {first}, [first]
    while ahead:
        world = ahead.pop()
        if world.is_written_twice:
            return world, len(seen)
        for found in steps(world, rules):
            if found not in seen:
                seen.add(found)
                ahead.append(found)
    return None, len(seen)
