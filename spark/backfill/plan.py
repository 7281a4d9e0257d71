"""Divides what waits in segments into units that executors make at the same time. Pure.

    session 7   partitions 0 1 2 3 │ 4 5 6 7       two units: each reads the session's segments from its first byte on
    session 9   partitions 8 9                     one unit

Partitions go together by the session in which their first run lies, as compactors share the work, so that a segment is read once.
Only where there are fewer sessions than cores are those of one session divided, at the cost of a further read.

Invariants: no partition is in two units; of each a unit takes what `plan_unit` takes, so that what is left waits for the next wave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Final

from compaction.conversion.planner import CompactionTrigger, CompactionUnit, plan_unit
from compaction.wal.state import WalState
from metadata.model import SessionId, TopicPartition

# Of a unit that shares its segments with another: less is not worth a further read of them.
DIVIDED_BYTES_MIN: Final = 64 << 20


def plan_wave(
    state: WalState,
    wanted: Collection[TopicPartition],
    *,
    units: int,
    unit_bytes_max: int,
    blocked: Collection[TopicPartition] = (),
) -> list[CompactionUnit]:
    """Plans about `units` units of the `wanted` partitions, the largest first; none if nothing waits."""
    waiting = {
        where: (runs.first_segment[0], runs.bytes_pending)
        for where, runs in state.pending.items()
        if where in wanted and where not in blocked and where in state.floors and where not in state.damaged
    }
    rule = CompactionTrigger(due_bytes=0, due_age_ms=0, scratch_bytes_max=unit_bytes_max, runs_max=state.run_count + 1)
    planned = []
    for group in group_partitions(waiting, units):
        unit = plan_unit(state, rule, now_ms=0, may=_among(group), blocked=blocked, everything=True)
        if unit is not None:
            planned.append(unit)
    return sorted(planned, key=lambda unit: -unit.size_bytes)


def _among(partitions: frozenset[TopicPartition]) -> Callable[[TopicPartition, SessionId], bool]:
    return lambda where, _: where in partitions


def group_partitions(waiting: Mapping[TopicPartition, tuple[SessionId, int]], units: int) -> list[frozenset[TopicPartition]]:
    """Groups partitions by session into parts of similar size, in the order in which segments hold them.

    `waiting`: for each partition, the session of its first run and its bytes.
    """
    by_session: dict[SessionId, list[TopicPartition]] = defaultdict(list)
    for where, (session, _) in sorted(waiting.items()):
        by_session[session].append(where)
    total = sum(size for _, size in waiting.values())
    target = max(DIVIDED_BYTES_MIN, total // max(1, units))
    groups: list[frozenset[TopicPartition]] = []
    for partitions in by_session.values():
        held: list[TopicPartition] = []
        held_bytes = 0
        for where in partitions:
            size = waiting[where][1]
            if held and held_bytes + size > target:
                groups.append(frozenset(held))
                held, held_bytes = [], 0
            held.append(where)
            held_bytes += size
        groups.append(frozenset(held))
    return groups
