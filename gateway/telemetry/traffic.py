"""Counts the traffic of the listeners for /metrics: records and bytes, durations of requests, and refusals.

    listener    http, grpc, kafka: requests of clients    peer: requests that other brokers forward for their clients

The sum over the first three is what clients did. Counting is per request, never per record. A refusal is counted by its code in the
error tree, once for each partition of a request that is refused by itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from metadata.errors import TidelogError
from metadata.measurements import Histogram, counter, gauge, histogram
from segments.partition.partition_log import Appended
from segments.read.log_reader import FetchResult

HTTP: Final = "http"
GRPC: Final = "grpc"
KAFKA: Final = "kafka"
PEER: Final = "peer"


@dataclass(slots=True)
class ListenerTraffic:
    """Counts what goes through one listener since the process began."""

    calls: int = counter("tidelog_calls", "Requests and streams that were begun.")
    # Counted after the commit if the producer asked for it. A recognised repeat is not counted again.
    produced_records: int = counter("tidelog_produced_records", "Records that were accepted.")
    produced_bytes: int = counter("tidelog_produced_bytes", "Bytes of the requests whose records were accepted.")
    # Counted by offsets, so records that key compaction has removed in between count as well.
    fetched_records: int = counter("tidelog_fetched_records", "Records that readers were answered with.")
    fetched_bytes: int = counter("tidelog_fetched_bytes", "Bytes of the answers that carried records.")
    open_calls: int = gauge("tidelog_open_calls", "Requests and streams that are open.")
    # Covers requests with at least one accepted batch.
    produce_seconds: Histogram = histogram(
        "tidelog_produce_seconds", "Time from reading a produce request to its answer: its commit, where it has asked for that."
    )
    fetch_seconds: Histogram = histogram(
        "tidelog_fetch_seconds",
        "Time to an answer with records, since it was asked for or since these were committed: no waiting for new ones.",
    )
    errors: Counter[str] = counter(
        "tidelog_errors",
        "What was refused or failed, by code: requests, and partitions of requests that fare differently.",
        labels=("code",),
        known=("THROTTLED", "INTERNAL"),
    )

    def produced(self, found: Iterable[Appended | TidelogError], *, request_bytes: int, seconds: float) -> None:
        """Counts the outcomes of a request's batches; a refused batch has an error in its place.

        `seconds` is the request's duration.
        """
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
        """Counts the records of one answer, and its bytes."""
        self.fetched_records += records
        self.fetched_bytes += answer_bytes

    def fetch_took(self, answers: Iterable[FetchResult | TidelogError], *, began_s: float, could_wait: bool) -> None:
        """Observes the time from the request, or from the commit of the newest records, to the answer with them.

        If another broker answered a request that could wait, this broker does not know the commit time, and observes nothing.
        """
        there_since_s = began_s
        is_answer = False
        for answer in answers:
            if isinstance(answer, FetchResult) and answer.size_bytes:
                is_answer = True
                if answer.committed_at_s is not None:
                    there_since_s = max(there_since_s, answer.committed_at_s)
                elif could_wait:
                    return
        if is_answer:
            self.fetch_seconds.observe(asyncio.get_running_loop().time() - there_since_s)

    def refused(self, error: TidelogError) -> None:
        """Counts a refusal by its code."""
        self.errors[error.code] += 1


class Traffic:
    """The counters of all listeners: `http`, `grpc` and `kafka` for clients, `peer` for requests that other brokers forward."""

    def __init__(self) -> None:
        self.listeners = {listener: ListenerTraffic() for listener in (HTTP, GRPC, KAFKA, PEER)}
        self.http, self.grpc = self.listeners[HTTP], self.listeners[GRPC]
        self.kafka, self.peer = self.listeners[KAFKA], self.listeners[PEER]

    def over_grpc(self, *, is_forwarded: bool) -> ListenerTraffic:
        """Returns the counters of a gRPC request: `peer` if another broker forwarded it, else `grpc`."""
        return self.peer if is_forwarded else self.grpc
