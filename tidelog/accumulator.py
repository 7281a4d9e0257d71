"""Collects records into batches per partition, and says which batches leave now. Pure: the caller brings the time.

    records ──add──▶ lane (topic, partition) ──▶ ┐
    records ──add──▶ lane                    ──▶ ├ take(leader): one batch of each lane that has one ready, in turn
    records ──add──▶ lane                    ──▶ ┘

A batch is ready when it is full, when it has waited `linger_ms`, when a flush closed it, or at once when nothing of its lane is
unanswered: a lone record is not kept waiting, and records that come while one batch is away travel together in the next.

Invariant: `buffered_bytes` is the sum of all batches from their first record until they have left their lane for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metadata.errors import TidelogError
from tidelog.batch import Batch
from tidelog.lane import Lane
from tidelog.outcomes import Outcomes
from tidelog.settings import ClientSettings

REQUEST_BATCHES_MAX = 10_000
"""A broker refuses a request of more appends."""
FAILURES_KEPT_MAX = 1_000
"""Failed batches remembered until a flush reports them; beyond it the newest are dropped."""


class Accumulator:
    def __init__(self, settings: ClientSettings) -> None:
        self.buffered_bytes = 0
        self.failures: list[Batch] = []
        """Batches that failed since a flush last took them, the oldest first."""
        self.outcomes = Outcomes()
        """Of all records since the beginning."""
        self._settings = settings
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._producer: tuple[int, int] | None = None
        """Producer id and epoch for lanes that are made: no lane of these partitions had it before."""
        self._busy: dict[str, dict[Lane, None]] = {}
        """By leader: the lanes that are not idle, in the order of their turn."""
        self._gained: set[str] = set()
        self._left: set[str] = set()

    def lane(self, topic: str, partition: int, *, leader: str, topic_id: str) -> Lane:
        """The lane of this partition, made at first use; a lane that is there keeps its leader."""
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = Lane(topic, partition, leader=leader, topic_id=topic_id, settings=self._settings)
            self._lanes[topic, partition] = lane
            if self._producer is not None and lane.producer is None:
                lane.identify(*self._producer)
        return lane

    def lead(self, lane: Lane, leader: str, *, leader_epoch: int) -> None:
        """The partition's leader is this one now: the lane moves as soon as nothing of it is on the wire.

        What a broker says that lags behind, of an older leader or of none, is not followed.
        """
        if leader_epoch >= lane.leader_epoch:
            lane.leader_epoch, lane.next_leader = leader_epoch, leader
            self._move_when_quiet(lane)

    def made_anew(self, lane: Lane, topic_id: str, now_s: float) -> None:
        """The topic was deleted and made again under its name."""
        lane.made_anew(topic_id, now_s)
        self._collect((lane,))

    def drop(self, lanes: Iterable[Lane], error: TidelogError) -> None:
        """The topic does not have these partitions (any more), or nobody writes to them: fails what is left, and forgets them."""
        for lane in lanes:
            lane.abandon(error)
            self._collect((lane,))
            self._left.add(lane.leader)
            del self._lanes[lane.topic, lane.partition]
        self._producer = None  # a lane that is made for one of them again must not begin again under the same id

    def _move_when_quiet(self, lane: Lane) -> None:
        if lane.on_wire or lane.leader == lane.next_leader:
            return
        if self._leave_line(lane):
            self._busy.setdefault(lane.next_leader, {})[lane] = None
            self._gained.add(lane.next_leader)
        self._left.add(lane.leader)
        lane.leader = lane.next_leader

    def _leave_line(self, lane: Lane) -> bool:
        """Whether it stood in its leader's line."""
        line = self._busy.get(lane.leader, {})
        if lane not in line:
            return False
        del line[lane]
        if not line:
            del self._busy[lane.leader]
        return True

    def take_gained(self) -> set[str]:
        """Leaders that something moved to since this was last asked: somebody has to send there now."""
        gained, self._gained = self._gained, set()
        return gained

    def take_unused(self) -> set[str]:
        """Leaders that lanes moved away from since this was last asked, and that no other lane is with or is to go to."""
        left, self._left = self._left, set()
        if left:
            left -= self._busy.keys()
            left -= {lane.next_leader for lane in self._lanes.values()}
        return left

    # ── in ──

    def roll(self, lane: Lane, now_s: float) -> Batch:
        """Opens the lane's next batch; the one that was open leaves."""
        self._busy.setdefault(lane.leader, {}).setdefault(lane)
        return lane.roll(now_s)

    def close_open_batches(self) -> None:
        """A flush: everything may leave now."""
        for lane in self._all_busy():
            lane.close()

    # ── out ──

    def take(self, leader: str, now_s: float, *, bytes_max: int) -> list[Batch]:
        """The batches that leave for `leader` now, at most one of each lane, together up to `bytes_max` or a single one.

        The lanes that were served go to the end of the line. Each batch counts as sent.
        """
        line = self._busy.get(leader, {})
        taken: list[Batch] = []
        taken_bytes = 0
        for lane in list(line):
            if taken_bytes >= bytes_max or len(taken) == REQUEST_BATCHES_MAX:
                break
            batch = lane.next_batch(now_s)
            if batch is None:
                continue
            if taken and taken_bytes + batch.request_bytes > bytes_max:
                break  # it was numbered, and keeps its place: the next request takes it first
            lane.sent(batch)
            taken.append(batch)
            taken_bytes += batch.request_bytes
            line[lane] = line.pop(lane)
        return taken

    def wakes_at_s(self, leader: str) -> float | None:
        """When `take` may have something for `leader` without a new record or answer; None for never."""
        times = [at_s for lane in self._busy.get(leader, ()) if (at_s := lane.wakes_at_s()) is not None]
        return min(times, default=None)

    def unidentified(self, leader: str) -> list[Lane]:
        """Lanes that need a producer id before they can send."""
        return [lane for lane in self._busy.get(leader, ()) if lane.producer is None]

    def identify(self, producer_id: int, producer_epoch: int) -> None:
        """Gives a fresh producer id to all lanes that have none, and to those that are made from now on."""
        for lane in {*self._lanes.values(), *self._all_busy()}:
            if lane.producer is None:
                lane.identify(producer_id, producer_epoch)
        self._producer = producer_id, producer_epoch

    def unsettled(self) -> list[Batch]:
        """Every batch that has no outcome yet."""
        return list(_unsettled(self._all_busy()))

    def unacknowledged_records(self, leader: str) -> int:
        """Records for this leader that have no outcome yet."""
        return sum(batch.record_count for batch in _unsettled(self._busy.get(leader, ())))

    def in_flight(self, leader: str) -> list[str]:
        """Topics with something on the wire to this leader."""
        return sorted({lane.topic for lane in self._busy.get(leader, ()) if lane.on_wire})

    def is_deserted(self, leader: str) -> bool:
        """Whether a lane waits for answers from here only to move to another broker."""
        return any(lane.on_wire and lane.next_leader != leader for lane in self._busy.get(leader, ()))

    def topics_of(self, leader: str) -> set[str]:
        """Topics with something to send to this leader."""
        return {lane.topic for lane in self._busy.get(leader, ())}

    def busy(self, leader: str) -> list[Lane]:
        """Lanes with something to send to this leader, or to await from it."""
        return list(self._busy.get(leader, ()))

    @property
    def leaders(self) -> list[str]:
        """Where something is to be sent, or awaited from."""
        return list(self._busy)

    # ── what happened ──

    def acknowledged(self, batch: Batch, base_offset: int, now_s: float) -> None:
        was_settled = batch.settled
        batch.lane.acknowledged(batch, base_offset, now_s)
        if batch.settled and not was_settled:
            self.outcomes.acknowledged += batch.record_count
        self._collect((batch.lane,))

    def refused(self, batch: Batch, error: TidelogError, now_s: float) -> None:
        batch.lane.refused(batch, error, now_s)
        self._collect((batch.lane,))

    def expire(self, leader: str, now_s: float) -> bool:
        """Fails what is past its deadline; answers whether the broker owes an answer that is overdue."""
        lanes = list(self._busy.get(leader, ()))
        for lane in lanes:
            lane.expire(now_s)
        self._collect(lanes)
        return any(lane.is_overdue(now_s) for lane in lanes)

    def unreachable(self, leader: str, error: TidelogError) -> None:
        """No connection, or no answer on it: nothing went out, and it will be tried again."""
        for lane in self._busy.get(leader, ()):
            lane.last_trouble = error

    def abandon(self, lanes: Iterable[Lane], error: TidelogError) -> None:
        """What no retry mends: fails everything that is left in these lanes."""
        for lane in list(lanes):
            lane.abandon(error)
            self._collect((lane,))

    def abandon_all(self, error: TidelogError) -> None:
        """The client closes."""
        self.abandon(self._all_busy(), error)

    def take_failures(self) -> list[Batch]:
        failures, self.failures = self.failures, []
        return failures

    def _collect(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            self.buffered_bytes -= lane.released_bytes
            lane.released_bytes = 0
            if lane.failures:
                for batch in lane.failures:
                    self._count_failure(batch)
                self.failures = (self.failures + lane.failures)[:FAILURES_KEPT_MAX]
                lane.failures = []
            self._move_when_quiet(lane)
            if lane.is_idle:
                self._leave_line(lane)

    def _count_failure(self, batch: Batch) -> None:
        if batch.error is not None and batch.error.nothing_was_written:
            self.outcomes.refused += batch.record_count
        else:
            self.outcomes.unknown += batch.record_count

    def _all_busy(self) -> list[Lane]:
        return [lane for line in self._busy.values() for lane in line]


def _unsettled(lanes: Iterable[Lane]) -> Iterator[Batch]:
    for lane in lanes:
        for batch in (*lane.unanswered, *lane.closed, lane.open):
            if batch is not None and not batch.settled:
                yield batch
