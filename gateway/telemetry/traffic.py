"""What goes through the listeners: records and bytes, how long requests took, and how they were refused, for /metrics.

    listener    http, grpc, kafka: clients    peer: what other brokers forward for theirs; the sum of the others is what clients did

Counted per request, never per record. What is refused is counted by its code in the tree of errors, once for each partition of a
request that fares differently.
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
    # Committed, where their producer has asked for that. A repeat that is recognised is not counted again.
    produced_records: int = counter("tidelog_produced_records", "Records that were accepted.")
    produced_bytes: int = counter("tidelog_produced_bytes", "Bytes of the requests whose records were accepted.")
    # By their offsets: those that key compaction has removed in between count as well.
    fetched_records: int = counter("tidelog_fetched_records", "Records that readers were answered with.")
    fetched_bytes: int = counter("tidelog_fetched_bytes", "Bytes of the answers that carried records.")
    open_calls: int = gauge("tidelog_open_calls", "Requests and streams that are open.")
    # Of requests of which something was accepted.
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

    def fetch_took(self, answers: Iterable[FetchResult | TidelogError], *, began_s: float, could_wait: bool) -> None:
        """What it took to answer with records. Where another broker has answered a question that may wait, nobody knows here."""
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
        self.errors[error.code] += 1


class Traffic:
    """The counts of all listeners: http, grpc and kafka serve clients, peer is what other brokers forward for theirs."""

    def __init__(self) -> None:
        self.listeners = {listener: ListenerTraffic() for listener in (HTTP, GRPC, KAFKA, PEER)}
        self.http, self.grpc = self.listeners[HTTP], self.listeners[GRPC]
        self.kafka, self.peer = self.listeners[KAFKA], self.listeners[PEER]

    def over_grpc(self, *, is_forwarded: bool) -> ListenerTraffic:
        return self.peer if is_forwarded else self.grpc
