"""Turns counters of bytes by topic into rates over the last minutes. Pure: the caller brings the time.

    tick        0    1    2   …  29    now
    written    [ 3 ][ 0 ][ 7 ]…[ 4 ]    2     ─▶ a ring of bytes a second, and the bytes since the last tick

Invariant: it follows TOPICS_MAX topics at most, each with 2 × TICKS numbers. A topic that was silent for TICKS ticks is forgotten.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple

from metadata.model import TopicId

TICK_S: Final = 60.0
TICKS: Final = 30
# Ticks whose mean is shown as the rate; a rate of one tick would jump.
SHOWN_TICKS: Final = 5
TOPICS_MAX: Final = 10_000


class TopicRate(NamedTuple):
    """Holds the rates of one topic at one broker, in bytes a second."""

    bytes_in_per_second: float
    bytes_out_per_second: float
    # Of the last ticks, the newest last.
    history: tuple[float, ...]


class _Ring:
    __slots__ = ("read", "silent_ticks", "written")

    def __init__(self) -> None:
        self.written = array("f", bytes(4 * TICKS))
        self.read = array("f", bytes(4 * TICKS))
        self.silent_ticks = 0


class TopicRates:
    """Follows the bytes that were written to and read from each topic."""

    def __init__(self, written: Counter[TopicId], read: Counter[TopicId], *, now_s: float) -> None:
        """Takes counters that grow meanwhile and that `tick` empties, so they hold what came since the last tick."""
        self._written, self._read = written, read
        self._rings: dict[TopicId, _Ring] = {}
        self._ticks = 0
        self._ticked_at_s = now_s

    def __len__(self) -> int:
        return len(self._rings)

    def tick(self, known: Collection[TopicId], *, now_s: float) -> None:
        """Ends a tick. `known`: the topics that exist; the others are forgotten. A late tick counts as several."""
        passed = max(1, min(TICKS, round((now_s - self._ticked_at_s) / TICK_S)))
        for topic_id in self._written.keys() | self._read.keys():
            if topic_id not in self._rings and topic_id in known and len(self._rings) < TOPICS_MAX:
                self._rings[topic_id] = _Ring()
        slots = [(self._ticks + number) % TICKS for number in range(passed)]
        for topic_id, ring in list(self._rings.items()):
            span_s = passed * TICK_S
            written, read = self._written[topic_id] / span_s, self._read[topic_id] / span_s
            for slot in slots:
                ring.written[slot], ring.read[slot] = written, read
            ring.silent_ticks = 0 if written or read else ring.silent_ticks + passed
            if ring.silent_ticks >= TICKS or topic_id not in known:
                del self._rings[topic_id]
        self._written.clear()
        self._read.clear()
        self._ticks += passed
        self._ticked_at_s = now_s

    def topics(self) -> set[TopicId]:
        """Returns the topics with traffic."""
        return self._rings.keys() | self._written.keys() | self._read.keys()

    def rate(self, topic_id: TopicId, *, now_s: float) -> TopicRate:
        """Returns the rates over the last SHOWN_TICKS ticks and what came since, or over the time since the start if it is less."""
        pending_s = max(1.0, now_s - self._ticked_at_s)
        written, read = float(self._written.get(topic_id, 0)), float(self._read.get(topic_id, 0))
        ring = self._rings.get(topic_id)
        ended = min(self._ticks, SHOWN_TICKS)
        span_s = pending_s + ended * TICK_S
        if ring is None:
            return TopicRate(written / span_s, read / span_s, ())
        in_order = self._in_order(ring.written)
        written += TICK_S * sum(in_order[-ended:]) if ended else 0.0
        read += TICK_S * sum(self._in_order(ring.read)[-ended:]) if ended else 0.0
        return TopicRate(written / span_s, read / span_s, tuple(in_order))

    def _in_order(self, ring: array[float]) -> array[float]:
        """Returns the ticks of a ring that have ended, the newest last."""
        newest = self._ticks % TICKS
        return ring[:newest] if self._ticks < TICKS else ring[newest:] + ring[:newest]
