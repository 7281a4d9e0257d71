"""Runs the loop of the compactor: it reads the bucket, compacts what is due, then maintains history.

    list wal/ ──▶ newest manifests of what is new ─▶ units, while something is due ─▶ retention, merges, keys ─▶ trim ─▶ collect
         ▲                                                                                                           │
         └───────────────────────────────── pause ◀── brokers are notified ◀─────────────────────────────────────────┘

It decides from the bucket alone; of the metadata it uses the topics, the other compactors, and a key for notices. A failed
step is logged, and the others go on: the next pass plans everything again from the bucket. The loop may be ended at
any moment, and any number of compactors may run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from compaction.context import CompactionContext
from compaction.conversion.convert_unit import UnitReport, convert_unit
from compaction.conversion.planner import CompactionTrigger, CompactionUnit, plan_unit, straddling
from compaction.gc.collector import GarbageCollector
from compaction.gc.deleted_topics import DeletedTopics
from compaction.gc.pending_deletions import PendingDeletions
from compaction.gc.wal_trim import session_name, trim_wal
from compaction.maintenance.maintainer import HistoryMaintainer
from compaction.metrics import CompactionState
from compaction.notifier import ManifestNotifier
from compaction.wal.scanner import WalBacklog
from metadata.backup.restore_state import SkippedSessions
from metadata.cluster.manifest_notice import ManifestNotice
from metadata.errors import Corrupt, TidelogError
from metadata.model import Offset, SessionId, TopicPartition
from segments.history.manifest import Manifest
from segments.object_store.clock_reading import doubt_for_people

# A damaged partition is skipped for this time; its object may have been restored since.
BLOCKED_MS = 600_000
# Everything is read again after this time while something is damaged: unreadable footers, or runs that were put aside.
RESCAN_MS = 3_600_000
# Upper bound of that time, which doubles with each attempt: permanent damage costs less and less.
RESCAN_MS_MAX = 86_400_000
# Manifests read together, so that not all are in memory at once.
FLOORS_AT_ONCE = 256
# With more runs, planning goes to a thread; with fewer it holds the event loop for a few milliseconds.
PLANNED_IN_A_THREAD = 20_000

# Pause between two log lines about a clock that stays in doubt.
DOUBT_LOGGED_EACH_S = 600.0

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass(slots=True)
class TickReport:
    """Counts the manifests of one pass, and holds its failures and damage."""

    manifests: int = 0
    failed: list[TidelogError] = field(default_factory=list)
    damaged: dict[TopicPartition, Corrupt] = field(default_factory=dict)


class Compactor:
    """Compacts and maintains the bucket. Its owner runs `run()` as a task, or calls `tick`."""

    def __init__(
        self,
        context: CompactionContext,
        notices: ManifestNotifier,
        *,
        report: Callable[[str], None] = lambda text: log.info("%s", text),
    ) -> None:
        """Passes a line of text to the callback after each unit of work; by default it is logged."""
        self._context = context
        self._notices = notices
        self._report = report
        settings = context.settings
        self.view = WalBacklog(context.store, runs_max=settings.pending_runs_max, reads_max=settings.compaction_reads_max)
        self._deleted = DeletedTopics(context, self.view.state)
        self._keeping = HistoryMaintainer(context, pending_bytes=self._pending_bytes)
        self._collector = GarbageCollector(context)
        self._rule = CompactionTrigger(
            settings.compaction_due_bytes, settings.compaction_due_age_ms, settings.scratch_bytes_max, settings.pending_runs_max
        )
        self._deletions = PendingDeletions()
        self._begun_ms: int | None = None
        self._rescan_after_ms = RESCAN_MS
        self._blocked: dict[TopicPartition, tuple[Corrupt, int]] = {}
        self._doubt_logged_s: float | None = None
        self.metrics = CompactionState()

    @property
    def damaged(self) -> dict[TopicPartition, Corrupt]:
        """Returns the partitions that are not compacted, with the error of each."""
        return self.view.state.damaged | {where: error for where, (error, _) in self._blocked.items()}

    def skip(self, sessions: SkippedSessions) -> None:
        """Leaves these sessions as they are. Called before the first pass."""
        self.view.state.skipped = sessions

    def hear(self, notices: Iterable[ManifestNotice]) -> None:
        """Schedules deletions of leaders for the next pass. Notices of other compactors are ignored."""
        self._deletions.hear(notices, now_ms=self._context.now_ms())

    async def run(self) -> None:
        """Runs passes repeatedly, until cancelled. An unexpected error is logged, and does not end the broker."""
        try:
            while True:
                try:
                    await self.tick()
                except Exception:
                    self._context.counters.failures += 1
                    log.exception("compactor failed with an unexpected error; retrying at the next pass")
                await asyncio.sleep(self._context.settings.compaction_interval_ms / 1000)
        finally:
            self._keeping.close()
            self._collector.close()

    async def tick(self, *, everything: bool = False) -> TickReport:
        """Runs one pass and all that is due then; `everything`: all that waits. Failures are in the report, and in the log.

        Raises an ExceptionGroup of unexpected errors, after all steps have run.
        """
        report, unforeseen = TickReport(), list[Exception]()
        steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("polling the WAL", self._poll_wal),
            ("checking the clock", self._check_clock),
            ("finding deleted topics", self._deleted.poll),
            ("taking in deleted records", self._take_in_deletions),
            ("reading manifests", self._read_floors),
            ("compacting", lambda: self._compact(report, everything=everything)),
            ("maintaining history", self._keep),
            ("trimming segments", self._trim),
            ("collecting garbage", self._collect),
            ("measuring", self._measure),
            ("notifying brokers", self._notify_brokers),
        ]
        for what, step in steps:
            try:
                await step()
            except TidelogError as error:
                self._context.counters.failures += 1
                log.warning("step failed: %s: %s; retrying at the next pass", what, error)
                report.failed.append(error)
            except Exception as error:  # noqa: BLE001  # a bug in one step must not stop the others
                unforeseen.append(error)
        if unforeseen:
            raise ExceptionGroup("steps of the compactor", unforeseen)
        report.damaged = self.damaged
        return report

    async def _aside(self, work: Callable[[], Answer]) -> Answer:
        """Runs `work` in a thread if it would hold the event loop; nothing else changes the view of the bucket meanwhile."""
        return await asyncio.to_thread(work) if self.view.state.run_count > PLANNED_IN_A_THREAD else work()

    async def _poll_wal(self) -> None:
        now_ms = self._context.now_ms()
        has_damage = self.view.state.has_damage
        if self._begun_ms is None or not (has_damage or self._blocked):
            self._begun_ms, self._rescan_after_ms = now_ms, RESCAN_MS
        elif has_damage and now_ms - self._begun_ms >= self._rescan_after_ms:
            self.view.begin_again()
            self._blocked.clear()
            self._begun_ms, self._rescan_after_ms = now_ms, min(2 * self._rescan_after_ms, RESCAN_MS_MAX)
        try:
            await self.view.poll(now_ms=now_ms)
        except TidelogError:
            self.metrics.failing_since_ms = self.metrics.failing_since_ms or now_ms
            raise
        self.metrics.polled_at_ms, self.metrics.failing_since_ms = self._context.now_ms(), 0

    async def _check_clock(self) -> None:
        """Logs when the clock is in doubt, repeatedly, and when it no longer is. Each expiry checks the doubt itself."""
        clock = self._context.clock
        reading, now_s = clock.reading(), clock.steady_s()
        if not reading.is_doubted:
            if self._doubt_logged_s is not None:
                log.warning("clock agrees again with bucket=%s", self._context.store.url)
            self._doubt_logged_s = None
        elif self._doubt_logged_s is None or now_s - self._doubt_logged_s >= DOUBT_LOGGED_EACH_S:
            self._doubt_logged_s = now_s
            log.error("clock in doubt: %s", doubt_for_people(reading, self._context.store.url))

    async def _take_in_deletions(self) -> None:
        """Makes manifests be read again: of runs that wait here, which are due then, and of history maintained here."""
        state, manifests = self.view.state, self._context.manifests
        for where, version in self._deletions.due(now_ms=self._context.now_ms()):
            kept = manifests.kept(where)
            if kept is not None and kept.version >= version:
                self._deletions.found(where)
                continue
            runs = state.pending.get(where)
            if runs is None or self._may(where, runs.first_segment[0]):
                state.floors.pop(where, None)
            self._keeping.reread_manifest(where)

    async def _read_floors(self) -> None:
        """Reads the newest manifests of partitions that are new, or that another compactor continued."""
        state = self.view.state
        names: dict[TopicPartition, str] = {}
        for where in state.without_floor():
            topic = self._context.topic(where.topic_id)
            if topic is not None and where not in self._blocked:
                names[where] = topic.name
        left = sorted(names)
        while left:
            part, left = left[:FLOORS_AT_ONCE], left[FLOORS_AT_ONCE:]
            for where, manifest in (await self._context.manifests.read({where: names[where] for where in part})).items():
                if isinstance(manifest, Manifest):
                    state.advance(manifest)
                else:
                    self._block(where, manifest)

    async def _compact(self, report: TickReport, *, everything: bool) -> None:
        unforeseen = list[Exception]()
        await self._convert_units(report, unforeseen, everything=everything)
        if unforeseen:
            raise ExceptionGroup("partitions that were compacted", unforeseen)

    async def _convert_units(self, report: TickReport, unforeseen: list[Exception], *, everything: bool) -> None:
        """Compacts while units are due, and adds errors of single partitions to `unforeseen`."""
        now_ms = self._context.now_ms()
        self._blocked = {where: held for where, held in self._blocked.items() if held[1] > now_ms}
        state = self.view.state
        for where, error in await self._aside(lambda: list(straddling(state))):
            self._block(where, error)
        while True:

            def plan() -> CompactionUnit | None:
                return plan_unit(
                    state, self._rule, now_ms=self._context.now_ms(), may=self._may, blocked=self._blocked, everything=everything
                )

            unit = await self._aside(plan)
            if unit is None:
                return self._make_room()
            before = self._context.counters.bytes_in, self._context.counters.bytes_out
            done = await convert_unit(self._context, state, unit)
            report.manifests += done.manifests
            unforeseen += done.unforeseen
            self._report_unit(unit, done, *before)
            await self._read_trim_markers(done)
            for where, error in done.damaged.items():
                if where in state.floors:
                    self._block(where, error)
            if not done.manifests:
                return self._make_room()  # others were faster, or all of it is damaged: look again first

    def _make_room(self) -> None:
        """Puts aside runs behind damage where memory for runs is full: otherwise no other segments would be read."""
        state = self.view.state
        if state.run_count < self._rule.runs_max:
            return
        damaged = self.damaged
        stuck = [where for where in state.pending if where in damaged or state.waits_at_gap(where)]
        if stuck:
            count = sum(state.put_runs_aside(where) for where in stuck)
            log.error(
                "runs dropped from memory runs=%d partitions=%d: they wait behind damage or missing segments of %s; they stay on "
                "the bucket, and are read again later",
                count,
                len(stuck),
                ", ".join(map(str, stuck[:10])),
            )

    async def _read_trim_markers(self, done: UnitReport) -> None:
        """Looks for trim markers of planned segments that are gone: another compactor trimmed them, or they were deleted."""
        for session in sorted({segment.session for segment in done.gone}):
            if (held := self.view.state.sessions.get(session)) is not None:
                await self.view.read_trim_markers(held)

    async def _keep(self) -> None:
        await self._keeping.run()

    async def _trim(self) -> None:
        await trim_wal(self._context, self.view.state)

    async def _collect(self) -> None:
        await self._collector.run()

    def _may(self, where: TopicPartition, session: SessionId) -> bool:
        """Returns whether this compactor owns the run; sharing by session keeps each segment with one compactor."""
        return self._context.topic(where.topic_id) is not None and self._context.is_mine(session_name(session))

    def _pending_bytes(self, where: TopicPartition, from_offset: Offset) -> int:
        runs = self.view.state.pending.get(where)
        return runs.bytes_from(from_offset) if runs is not None else 0

    def _block(self, where: TopicPartition, error: Corrupt) -> None:
        if where not in self._blocked:
            log.error("partition not compacted partition=%s: %s; retrying later", where, error)
        self._blocked[where] = error, self._context.now_ms() + BLOCKED_MS

    def _report_unit(self, unit: CompactionUnit, done: UnitReport, bytes_in: int, bytes_out: int) -> None:
        counters = self._context.counters
        self._report(
            f"compacted: partitions {len(unit.partitions)}, segments {len(unit.segments)}, manifests {done.manifests}; "
            f"{(counters.bytes_in - bytes_in) / 1e6:.3f} MB of batches became "
            f"{(counters.bytes_out - bytes_out) / 1e6:.3f} MB of Parquet"
        )

    async def _measure(self) -> None:
        state, metrics = self.view.state, self.metrics

        def measure() -> None:
            metrics.bytes_pending = state.bytes_pending
            metrics.oldest_pending_ms = min((state.oldest_ms(runs) for runs in state.pending.values()), default=0)
            metrics.damaged = len(self.damaged.keys() | state.put_aside) + sum(
                len(session.damaged) for session in state.sessions.values()
            )

        await self._aside(measure)

    async def _notify_brokers(self) -> None:
        await self._notices.notify(self._context.new_nonce(16), self._context.manifests.changed())
