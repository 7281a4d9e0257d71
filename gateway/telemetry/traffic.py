"""What goes through the doors: records and bytes, how long requests took, and how they were refused. Plain numbers, for /metrics.

    door    http, grpc: clients      peer: what other brokers forward for theirs; the sum of the first two is what clients did

Counted per request, never per record. What is refused is counted by its code in the tree of errors, once for each partition of a
request that fares differently.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.telemetry.metric_families import counters, gauges, histograms
from metadata.errors import TidelogError
from metadata.measurements import Histogram
from segments.partition.partition_log import Appended
from segments.read.log_reader import Fetched

HTTP: Final = "http"
GRPC: Final = "grpc"
PEER: Final = "peer"


class DoorTraffic:
    """Since the process began."""

    __slots__ = (
        "calls",
        "errors",
        "fetch_seconds",
        "fetched_bytes",
        "fetched_records",
        "open_calls",
        "produce_seconds",
        "produced_bytes",
        "produced_records",
    )

    def __init__(self) -> None:
        self.calls = 0
        self.open_calls = 0
        self.produced_records = 0
        """Accepted: committed, where their producer has asked for that. What was recognised as a repeat is not counted again."""
        self.produced_bytes = 0
        """Of the requests that brought them."""
        self.produce_seconds = Histogram()
        """Of requests of which something was accepted: until it was committed, where their producer has asked for that."""
        self.fetched_records = 0
        """By their offsets: those that key compaction has removed in between count as well."""
        self.fetched_bytes = 0
        """Of the answers that carried them."""
        self.fetch_seconds = Histogram()
        """Of answers with records: since they were asked for, or committed, whichever was later. So no long poll is in here."""
        self.errors = Counter[str]()
        """By code."""

    def produced(self, found: Iterable[Appended | TidelogError], *, request_bytes: int, seconds: float) -> None:
        """What became of a request's batches. Refusals are counted as well: here they stand in the places of batches."""
        records = accepted = 0
        for outcome in found:
            if isinstance(outcome, TidelogError):
                self.errors[outcome.code] += 1
            else:
                accepted += 1
                if not outcome.duplicate:
                    records += outcome.last_offset - outcome.base_offset + 1
        if accepted:
            self.produced_records += records
            self.produced_bytes += request_bytes
            self.produce_seconds.observe(seconds)

    def fetched(self, *, records: int, answer_bytes: int) -> None:
        self.fetched_records += records
        self.fetched_bytes += answer_bytes

    def fetch_took(self, answers: Iterable[Fetched | TidelogError], *, began_s: float, could_wait: bool) -> None:
        """What it took to answer with records. Where another broker has answered a question that may wait, nobody knows here."""
        there_since_s = began_s
        is_answer = False
        for answer in answers:
            if isinstance(answer, Fetched) and answer.size_bytes:
                is_answer = True
                if answer.committed_at_s is not None:
                    there_since_s = max(there_since_s, answer.committed_at_s)
                elif could_wait:
                    return
        if is_answer:
            self.fetch_seconds.observe(asyncio.get_running_loop().time() - there_since_s)

    def refused(self, error: TidelogError) -> None:
        self.errors[error.code] += 1


class Traffic:
    def __init__(self) -> None:
        self.doors = {door: DoorTraffic() for door in (HTTP, GRPC, PEER)}
        self.http, self.grpc, self.peer = self.doors[HTTP], self.doors[GRPC], self.doors[PEER]

    def over_grpc(self, *, is_forwarded: bool) -> DoorTraffic:
        return self.peer if is_forwarded else self.grpc


class TrafficCollector(Collector):
    """What the doors count, by door: http and grpc are clients, peer is what other brokers forward for theirs."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def collect(self) -> Iterable[Metric]:
        doors = self._traffic.doors
        by_door: list[tuple[str, str, Callable[[str], float]]] = [
            ("tidelog_calls", "Requests and streams that were begun.", lambda door: doors[door].calls),
            ("tidelog_produced_records", "Records that were accepted.", lambda door: doors[door].produced_records),
            ("tidelog_produced_bytes", "Bytes of the requests that brought them.", lambda door: doors[door].produced_bytes),
            ("tidelog_fetched_records", "Records that readers were answered with.", lambda door: doors[door].fetched_records),
            ("tidelog_fetched_bytes", "Bytes of these answers.", lambda door: doors[door].fetched_bytes),
        ]
        for name, text, of in by_door:
            yield counters(name, text, ("door",), [((door,), of(door)) for door in doors])
        still_open = [((door,), doors[door].open_calls) for door in doors]
        yield gauges("tidelog_open_calls", "Requests and streams that are open.", ("door",), still_open)
        yield histograms(
            "tidelog_produce_seconds",
            "Time from reading a produce request to its answer: its commit, where it has asked for that.",
            ("door",),
            [((door,), held.produce_seconds) for door, held in doors.items()],
        )
        yield histograms(
            "tidelog_fetch_seconds",
            "Time to an answer with records, since it was asked for or since these were committed: no waiting for new ones.",
            ("door",),
            [((door,), held.fetch_seconds) for door, held in doors.items()],
        )
        yield counters(
            "tidelog_errors",
            "What was refused or failed, by code: requests, and partitions of requests that fare differently.",
            ("door", "code"),
            [
                ((door, code), count)
                for door, held in doors.items()
                for code, count in {"THROTTLED": 0, "INTERNAL": 0, **held.errors.copy()}.items()
            ],
        )
