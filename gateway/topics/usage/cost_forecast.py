"""Forecasts what the bucket costs in the next 30 days, and what a setting would change about it. Pure.

    requests    rate since the brokers began × 30 days × price                        measured
    compactor   requests that follow from segments and topics, where none is counted    estimated
    storage     mean of the bytes over 30 days × price of a month, by the rate of each topic and its retention

Records count with the bytes in which they came; Parquet is mostly smaller. Invariants: no cost is below 0; a longer retention never
costs less, nor does more traffic; the costs of topics, of what belongs to none and of requests add up to the total.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from compaction.settings import CompactionSettings
from gateway.topics.usage.cluster_usage import RequestFigures
from metadata.topics.settings import TopicSettings
from segments.object_store.instrumented import PRICED_AS_READS, PRICED_AS_WRITES
from segments.settings import SegmentSettings

GIB: Final = 1 << 30
MONTH_S: Final = 30 * 86_400.0
# What a change of the linger is compared with: as docs/reference/settings.md recommends where money counts more than milliseconds.
THRIFTY_LINGER_MS: Final = 250.0
THRIFTY_PUTS_PER_SECOND: Final = 4.0
# Topics of which a shorter retention is shown by itself.
RETENTIONS_SHOWN: Final = 3
# A saving below this share of the total is not shown.
LEAST_SHARE: Final = 0.001


@dataclass(frozen=True, slots=True)
class Prices:
    """Holds prices in dollars."""

    thousand_writes: float
    thousand_reads: float
    gib_month: float


class CountedTopic(NamedTuple):
    """Holds what decides about the cost of a topic."""

    name: str
    bytes: int
    bytes_in_per_second: float
    # All of them count as written to, where the topic is.
    partitions: int
    settings: TopicSettings


class CostSettings(NamedTuple):
    """Holds the settings that decide about the number of requests."""

    linger_ms: float
    puts_per_second_max: float
    compaction_due_age_ms: float
    compaction_interval_ms: float

    @classmethod
    def of(cls, segments: SegmentSettings, compaction: CompactionSettings) -> CostSettings:
        """Returns those of this process; compactors of their own may have others."""
        return cls(
            segments.linger_ms, segments.puts_per_second_max, compaction.compaction_due_age_ms, compaction.compaction_interval_ms
        )


@dataclass(frozen=True, slots=True)
class CostBasis:
    """Holds all that a forecast is made of."""

    prices: Prices
    requests: Sequence[RequestFigures]
    segments_per_second: Sequence[float]
    # Whether the requests of a compactor are among `requests`.
    compacts: bool
    topics: Sequence[CountedTopic]
    # Bytes on the bucket that belong to no topic that exists, or to several.
    other_bytes: int
    settings: CostSettings


class RequestCost(NamedTuple):
    """Holds the cost of one operation on one kind of objects for 30 days."""

    operation: str
    kind: str
    requests: float
    bytes: float
    dollars: float
    is_measured: bool


class TopicCost(NamedTuple):
    """Holds the cost of one topic for 30 days: its bytes, and its share of the PUTs of segments, by the bytes written."""

    name: str
    storage_dollars: float
    request_dollars: float
    mean_bytes: float

    @property
    def dollars(self) -> float:
        return self.storage_dollars + self.request_dollars


class Change(NamedTuple):
    """Says what another value of a setting would make of the forecast."""

    setting: str
    # Empty for a setting of brokers or compactors.
    topic: str
    now: str
    then: str
    dollars_less: float
    # What it costs apart from money.
    price_of_it: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """Holds the cost of 30 days."""

    requests: tuple[RequestCost, ...]
    topics: tuple[TopicCost, ...]
    # Of bytes that belong to no topic.
    other_storage_dollars: float
    changes: tuple[Change, ...]

    @property
    def request_dollars(self) -> float:
        return sum(each.dollars for each in self.requests)

    @property
    def storage_dollars(self) -> float:
        return sum(each.storage_dollars for each in self.topics) + self.other_storage_dollars

    @property
    def dollars(self) -> float:
        return self.request_dollars + self.storage_dollars


def forecast(basis: CostBasis) -> Forecast:
    """Returns the cost of the next 30 days, and what would change it, the largest saving first."""
    requests = _request_costs(basis)
    shared = sum(each.dollars for each in requests if (each.operation, each.kind) == ("create", "segments"))
    written = sum(topic.bytes_in_per_second for topic in basis.topics)
    topics = []
    for topic in basis.topics:
        share = topic.bytes_in_per_second / written if written else 0.0
        storage = _storage_dollars(topic, basis.prices)
        topics.append(TopicCost(topic.name, storage, shared * share, mean_bytes(topic, MONTH_S)))
    made = Forecast(requests, tuple(topics), basis.other_bytes / GIB * basis.prices.gib_month, ())
    return replace(made, changes=_changes(basis, made))


def mean_bytes(topic: CountedTopic, seconds: float) -> float:
    """Returns the mean of the bytes of a topic over this time from now, if it is written to as now.

    What is there goes evenly over the retention, and what comes is kept for as long. A topic that is compacted by key, and by
    nothing else, keeps its size.
    """
    held, rate, settings = topic.bytes, topic.bytes_in_per_second, topic.settings
    if not settings.deletes:
        return held
    kept_s = settings.retention_ms / 1000 if settings.retention_ms >= 0 else math.inf
    if kept_s > seconds:
        mean = held * (1 - seconds / kept_s / 2) + rate * seconds / 2
    else:
        mean = (held * kept_s / 2 + rate * kept_s * (seconds - kept_s / 2)) / seconds
    # retention.bytes is of each partition
    return min(mean, settings.retention_bytes * topic.partitions) if settings.retention_bytes >= 0 else mean


def _storage_dollars(topic: CountedTopic, prices: Prices) -> float:
    return mean_bytes(topic, MONTH_S) / GIB * prices.gib_month


def _request_costs(basis: CostBasis) -> tuple[RequestCost, ...]:
    costs = [
        RequestCost(
            made.operation,
            made.kind,
            made.requests_per_second * MONTH_S,
            made.bytes_per_second * MONTH_S,
            made.requests_per_second * MONTH_S * _price(made.operation, basis.prices),
            True,
        )
        for made in basis.requests
    ]
    if not basis.compacts:
        costs += _compactor_costs(basis)
    return tuple(sorted(costs, key=lambda each: (-each.dollars, each.operation, each.kind)))


def _compactor_costs(basis: CostBasis) -> list[RequestCost]:
    """Estimates the requests of compactors of their own.

    These are two GETs for each segment, a file and a manifest for each partition that is written to whenever its batches are due,
    and a LIST at each poll for each session.
    """
    segments = sum(basis.segments_per_second) * MONTH_S
    files = _compactions(basis, basis.settings.compaction_due_age_ms)
    polls = 1000 * MONTH_S / basis.settings.compaction_interval_ms
    written = sum(topic.bytes_in_per_second for topic in basis.topics) * MONTH_S
    made = [
        ("get", "segments", 2 * segments, written),
        ("create", "parquet", files, written),
        ("create", "manifests", files, 0.0),
        ("list", "segments", polls * max(1, len(basis.segments_per_second)), 0.0),
    ]
    return [
        RequestCost(operation, kind, count, moved, count * _price(operation, basis.prices), False)
        for operation, kind, count, moved in made
        if count
    ]


def _compactions(basis: CostBasis, due_age_ms: float) -> float:
    """Returns how often a partition is compacted in 30 days, summed over those that are written to."""
    return sum(topic.partitions for topic in basis.topics if topic.bytes_in_per_second) * 1000 * MONTH_S / due_age_ms


def _price(operation: str, prices: Prices) -> float:
    if operation in PRICED_AS_WRITES:
        return prices.thousand_writes / 1000
    return prices.thousand_reads / 1000 if operation in PRICED_AS_READS else 0.0


# ── what would change it ────────────────────────────────────────────────────────────────────────────────────────────────────


def _changes(basis: CostBasis, now: Forecast) -> tuple[Change, ...]:
    found = [*_longer_linger(basis), *_shorter_retention(basis), *_later_compaction(basis, now)]
    least = now.dollars * LEAST_SHARE
    return tuple(sorted((each for each in found if each.dollars_less > least), key=lambda each: -each.dollars_less))


def _longer_linger(basis: CostBasis) -> list[Change]:
    """Compares with fewer and larger segments; of these a broker writes at most the larger of the two rates a second."""
    settings = basis.settings
    linger_ms = max(settings.linger_ms, THRIFTY_LINGER_MS)
    puts = min(settings.puts_per_second_max, THRIFTY_PUTS_PER_SECOND)
    most = max(puts, 1000 / linger_ms)
    fewer = sum(max(0.0, rate - most) for rate in basis.segments_per_second) * MONTH_S
    return [
        Change(
            "linger_ms, puts_per_second_max",
            "",
            f"{settings.linger_ms:g} ms, {settings.puts_per_second_max:g} a second",
            f"{linger_ms:g} ms, {puts:g} a second",
            fewer * _price("create", basis.prices),
            f"A produce waits up to {linger_ms:g} ms longer for its commit.",
        )
    ]


def _shorter_retention(basis: CostBasis) -> list[Change]:
    largest = sorted(basis.topics, key=lambda topic: -_storage_dollars(topic, basis.prices))
    found = []
    for topic in largest[:RETENTIONS_SHOWN]:
        held = topic.settings
        if not held.deletes:
            continue
        then_ms = held.retention_ms // 2 if held.retention_ms > 0 else 30 * 86_400_000
        after = topic._replace(settings=replace(held, retention_ms=then_ms))
        less = _storage_dollars(topic, basis.prices) - _storage_dollars(after, basis.prices)
        now = _duration(held.retention_ms) if held.retention_ms >= 0 else "no limit"
        found.append(Change("retention.ms", topic.name, now, _duration(then_ms), less, "Older records can no longer be read."))
    return found


def _later_compaction(basis: CostBasis, now: Forecast) -> list[Change]:
    due_ms = basis.settings.compaction_due_age_ms
    most = _compactions(basis, due_ms) * 2
    made = sum(each.requests for each in now.requests if each.operation == "create" and each.kind in {"parquet", "manifests"})
    # A partition that is due by its bytes is compacted as often as before, and so are merges made: what age decides is less.
    fewer = min(most, made) * 3 / 4
    return [
        Change(
            "compaction_due_age_ms",
            "",
            _duration(due_ms),
            _duration(4 * due_ms),
            fewer * _price("create", basis.prices),
            "Records are in Parquet later, so reads of them before take more requests, and more memory of compactors.",
        )
    ]


def _duration(ms: float) -> str:
    """Returns a time span in the largest unit of which it has two: 80 s, 24 h, 3.5 d."""
    for size_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= 2 * size_ms:
            return f"{ms / size_ms:.3g} {unit}"
    return f"{ms / 1000:.3g} s"
