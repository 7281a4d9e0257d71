"""`tidelog serve` with a rule broken on purpose, so that a chaos run can show that it finds it.

python -m tests.chaos.broken_broker RULE serve --bucket …

What each rule is found by stands beside it: `python -m tests.chaos --prove` runs one after the other, and fails where one is not
found by any of these. The rules of the simulation that break within one process are among them; the others are broken here, since
they act on what clients receive.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest.mock import patch

import msgspec

from gateway.groups.coordinator import GroupCoordinator
from metadata.errors import TidelogError
from metadata.groups.offsets import StoredOffsets
from metadata.model import NO_PRODUCER, Offset, TopicPartition
from segments.log.session_log import PendingAppend, SessionLog
from segments.object_store.interface import Buffer
from segments.partition.leader_partitions import LeaderPartition
from segments.read import log_reader
from segments.read.log_reader import FetchResult
from segments.records.batch import split_batches
from segments.records.header import BatchHeader
from tests.simulation import broken_rules
from tests.simulation.broken_rules import BrokenRule
from tidelog.cli.main import main

LOST: Final = frozenset({"lost-write", "unseen", "inconsistent-offsets"})
# By the name of a rule, the anomalies one of which must be found when it is broken.
FOUND_BY: Final[Mapping[str, frozenset[str]]] = {
    BrokenRule.ACKNOWLEDGED_EARLY.value: LOST,
    BrokenRule.TAKEOVER_WITHOUT_SEAL.value: LOST | {"duplicate", "reordered", "insufficient-bucket"},
    BrokenRule.UNKNOWN_IS_FAILURE.value: frozenset({"refused-write"}),
    BrokenRule.REPEATS_NOT_KNOWN.value: frozenset({"duplicate", "reordered", "unexpected"}),
    "loses": LOST,
    "doubles": frozenset({"duplicate", "reordered"}),
    "skips": frozenset({"poll-skip", "int-poll-skip"}),
    "hides": frozenset({"unseen"}),
    "forgets-how-far": frozenset({"uncommitted-read", "watermark-went-back"}),
    "commits-lost": frozenset({"lost-commit", "commit-went-back"}),
    "commits-ahead": frozenset({"group-skip", "commit-beyond"}),
}

# Each tenth call of what is broken goes wrong, so that most of the rest is as it should be.
EVERY: Final = 10
# Of each partition, what lies behind this offset is not shown.
HIDDEN_FROM: Final = 50
# So many records are skipped by who begins there.
AHEAD: Final = 5


@contextlib.contextmanager
def in_force(rule: str) -> Iterator[None]:
    """While this lasts, the rule is broken everywhere in this process."""
    if rule in {known.value for known in BrokenRule}:
        with broken_rules.in_force(BrokenRule(rule)):
            yield
        return
    with contextlib.ExitStack() as patches:
        for target, name, broken in _PATCHES[rule]():
            patches.enter_context(patch.object(target, name, broken))
        yield


def _loses() -> list[tuple[Any, str, Any]]:
    """A batch is acknowledged, and never written; the next one takes its offsets."""
    append, due = SessionLog.append, _each_tenth()

    def losing(
        self: SessionLog, partition: TopicPartition, batch: Buffer, header: BatchHeader, *rest: Any, **how: Any
    ) -> PendingAppend:
        if partition in self.partitions._paused or partition not in self.partitions or self.ended or not due():
            return append(self, partition, batch, header, *rest, **how)
        log = self.partitions.at(partition).log
        appended = log.append(header, now_ms=self._now_ms())
        if not appended.duplicate:
            log.end_offset = appended.base_offset
        return PendingAppend(appended, None)

    return [(SessionLog, "append", losing)]


def _doubles() -> list[tuple[Any, str, Any]]:
    """A batch is written twice, the second time without its producer: its records lie behind later ones of their producer."""
    append, due = SessionLog.append, _each_tenth()

    def doubling(
        self: SessionLog, partition: TopicPartition, batch: Buffer, header: BatchHeader, *rest: Any, **how: Any
    ) -> PendingAppend:
        pending = append(self, partition, batch, header, *rest, **how)
        if due() and not pending.appended.duplicate:
            append(self, partition, batch, msgspec.structs.replace(header, producer_id=NO_PRODUCER), *rest)
        return pending

    return [(SessionLog, "append", doubling)]


def _skips() -> list[tuple[Any, str, Any]]:
    """Of an answer with several batches the first is left out."""
    fetched, due = log_reader._fetched, _each_tenth()

    def skipping(led: LeaderPartition, batches: list[Buffer], size_bytes: int, next_offset: Offset) -> FetchResult:
        whole = split_batches(b"".join(batches))
        if len(whole) > 1 and due():
            size_bytes -= len(whole[0])
            batches = list(whole[1:])
        return fetched(led, batches, size_bytes, next_offset)

    return [(log_reader, "_fetched", skipping)]


def _hides() -> list[tuple[Any, str, Any]]:
    """What lies behind some offset is not shown."""
    fetched = log_reader._fetched

    def hiding(led: LeaderPartition, batches: list[Buffer], size_bytes: int, next_offset: Offset) -> FetchResult:
        if next_offset <= HIDDEN_FROM:
            return fetched(led, batches, size_bytes, next_offset)
        nothing = fetched(led, [], 0, Offset(HIDDEN_FROM))
        return nothing._replace(high_watermark=Offset(HIDDEN_FROM))

    return [(log_reader, "_fetched", hiding)]


def _forgets_how_far() -> list[tuple[Any, str, Any]]:
    """Readers receive a high watermark of a while ago."""
    fetched, due = log_reader._fetched, _each_tenth()

    def forgetting(led: LeaderPartition, batches: list[Buffer], size_bytes: int, next_offset: Offset) -> FetchResult:
        answer = fetched(led, batches, size_bytes, next_offset)
        return answer._replace(high_watermark=Offset(answer.high_watermark // 2)) if due() else answer

    return [(log_reader, "_fetched", forgetting)]


def _commits_lost() -> list[tuple[Any, str, Any]]:
    """A group's commit is acknowledged, and never written."""
    commit, due = GroupCoordinator.commit, _each_tenth()

    async def losing(self: GroupCoordinator, *asked: Any) -> dict[TopicPartition, TidelogError]:
        return {} if due() else await commit(self, *asked)

    return [(GroupCoordinator, "commit", losing)]


def _commits_ahead() -> list[tuple[Any, str, Any]]:
    """More is reported as committed than is."""
    offsets, due = GroupCoordinator.offsets, _each_tenth()

    async def ahead(self: GroupCoordinator, name: str) -> StoredOffsets:
        found, wrong = await offsets(self, name), due()
        moved = {
            at: msgspec.structs.replace(reported, offset=reported.offset + AHEAD * wrong)
            for at, reported in found.committed.items()
        }
        return found._replace(committed=moved)

    return [(GroupCoordinator, "offsets", ahead)]


def _each_tenth() -> Callable[[], bool]:
    calls = 0

    def due() -> bool:
        nonlocal calls
        calls += 1
        return calls % EVERY == 0

    return due


_PATCHES: Final[Mapping[str, Callable[[], list[tuple[Any, str, Any]]]]] = {
    "loses": _loses,
    "doubles": _doubles,
    "skips": _skips,
    "hides": _hides,
    "forgets-how-far": _forgets_how_far,
    "commits-lost": _commits_lost,
    "commits-ahead": _commits_ahead,
}

if __name__ == "__main__":
    _, rule, *arguments = sys.argv
    sys.argv = ["tidelog", *arguments]
    with in_force(rule):
        main()
