"""The policies of the topics of one simulated world: what may expire, which keys are compacted, and how fast.

Drawn apart from all other chance, and only for worlds that have compactors: others are what they were.
"""

from __future__ import annotations

import random
from typing import Final

WEEK_MS: Final = 7 * 86_400_000


class Policies:
    def __init__(self, seed: int, *, compacting: bool) -> None:
        self._chance = random.Random(f"{seed}/policies")
        self._compacting = compacting
        self.delete_records_each_s = self._chance.choice((0.0, 1.0, 4.0)) if compacting else 0.0
        """On the average; 0: never."""

    @property
    def are_there(self) -> bool:
        return self._compacting

    def draw(self) -> dict[str, str]:
        """The settings of the next topic."""
        if not self._compacting:
            return {}
        chance = self._chance
        policy = chance.choice(("", "delete", "delete", "compact", "compact", "compact,delete"))
        settings = {"cleanup.policy": policy} if policy else {}
        if "delete" in policy:
            by = chance.choice(("time", "size", "both"))
            retention_ms, retention_bytes = chance.choice((3000, 8000, 20_000)), chance.choice((0, 5000, 20_000))
            settings["retention.ms"] = str(retention_ms if by != "size" else -1)
            settings["retention.bytes"] = str(retention_bytes if by != "time" else -1)
        if "compact" in policy:
            settings["min.compaction.lag.ms"] = str(chance.choice((0, 0, 2000, 8000)))
            settings["delete.retention.ms"] = str(chance.choice((500, 1000, 5000)))
        return settings


class Payloads:
    """What one producer gives its records beside their ids, where topics have policies: keys of few, some without a value."""

    def __init__(self, seed: int, producer: str) -> None:
        self._chance = random.Random(f"{seed}/{producer}/payloads")
        self._keys = self._chance.choice((2, 8, 25))
        self.clock_skew_ms = self._chance.choice((0, 0, 0, -3000, 2000))
        """Its records are dated by it, so files hold them out of order."""
        self._dates = random.Random(f"{seed}/{producer}/dates")
        self._undated_share, self._future_share = self._dates.choice(((0.0, 0.0),) * 6 + ((0.3, 0.0), (0.0, 0.02)))

    def dated_ms(self, now_ms: int) -> int:
        """Returns the timestamp of the next batch: -1 for none; a week ahead stays ahead for the whole world."""
        drawn = self._dates.random()
        if drawn < self._undated_share:
            return -1
        return now_ms + self.clock_skew_ms + (WEEK_MS if drawn < self._future_share else 0)

    def answer_is_lost(self) -> float:
        """For how many seconds its client then hears nothing and waits, until it sends the batch again; 0: it is not lost."""
        return self._chance.uniform(2.0, 8.0) if self._chance.random() < 0.03 else 0.0

    def draw(self) -> tuple[bytes | None, bool]:
        """Key, and whether it is a tombstone."""
        if self._chance.random() < 0.05:
            return None, False
        return f"k{self._chance.randrange(self._keys)}".encode(), self._chance.random() < 0.2
