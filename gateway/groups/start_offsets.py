"""Finds where members begin whose partitions this broker reads for them: those of Consume, and of reading over HTTP.

committed ─▶ ends of the leader epochs, from the leaders ─▶ metadata/group_member/start_offsets.py ─▶ starts
nothing committed, or gone ─▶ bounds, from the leaders ────▲
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from gateway.routing.cluster_fetch import may_succeed_elsewhere
from gateway.routing.log_service import EpochQuestion, LogService
from metadata.errors import TidelogError, UnknownLeaderEpoch
from metadata.group_member.start_offsets import GroupStart, StartPolicy, StartRules
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import TopicPartition
from segments.wal.run_index import EpochEnd

# Least time for the leaders of partitions without a committed offset, however long the others took.
BOUNDS_S_LEAST: Final = 0.2
_NOTHING: Final = StoredOffsets({}, {})


async def find_starts(
    log: LogService, rules: StartRules, names: Mapping[TopicPartition, str], stored: StoredOffsets | None, *, wait_s: float
) -> dict[TopicPartition, GroupStart | TidelogError]:
    """Returns where each partition of `names` begins, or why it can't be read, or not yet.

    `names`: as people write them. `stored`: what the group has committed; None: that does not count, since it is gone. Leaders are
    waited for up to `wait_s`, whatever they are asked.
    """
    clock = asyncio.get_running_loop().time
    ends_s = clock() + wait_s
    found: dict[TopicPartition, GroupStart | TidelogError] = {}
    committed = {at: offset for at, offset in (stored or _NOTHING).committed.items() if at in names}
    ends = await _ends_of_epochs(log, committed, wait_s)
    for at, offset in committed.items():
        end = ends.get(at)
        if isinstance(end, TidelogError):
            found[at] = end
        else:
            found[at] = rules.at_committed(names[at], offset.offset, leader_epoch=offset.leader_epoch, epoch_end=end)
    found |= {at: error for at, error in (stored or _NOTHING).damaged.items() if at in names}
    rest = [at for at in names if at not in found]
    if stored is not None and rules.policy is StartPolicy.ERROR:
        return found | {at: rules.nothing_committed(names[at]) for at in rest}
    bounds = await log.bounds_of(rest, wait_s=max(min(wait_s, BOUNDS_S_LEAST), ends_s - clock())) if rest else []
    for at, each in zip(rest, bounds, strict=True):
        found[at] = each if isinstance(each, TidelogError) else rules.within(names[at], each)
    return found


async def _ends_of_epochs(
    log: LogService, committed: Mapping[TopicPartition, CommittedOffset], wait_s: float
) -> dict[TopicPartition, int | TidelogError]:
    """Returns where the records of the committed epochs end, of those of which it is known; an error where it may be known soon."""
    asked = [EpochQuestion(at, offset.leader_epoch) for at, offset in committed.items() if offset.leader_epoch >= 0]
    ends = await log.ends_of_epochs(asked, wait_s=wait_s) if asked else []
    known: dict[TopicPartition, int | TidelogError] = {}
    for question, end in zip(asked, ends, strict=True):
        if isinstance(end, EpochEnd):
            if end.end_offset >= 0:
                known[question.partition] = end.end_offset
        elif may_succeed_elsewhere(end) and not isinstance(end, UnknownLeaderEpoch):  # a commit by hand may name any epoch
            known[question.partition] = end
    return known
