"""What a process tells Prometheus of the services below it: the bucket, and the metadata store. Brokers and compactors alike."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.telemetry.metric_families import counter, counters, gauge, gauges, histograms
from gateway.telemetry.settings import ObservabilitySettings
from metadata.store.instrumented import InstrumentedMetadataStore
from segments.object_store.health import BucketState
from segments.object_store.health_tracking import HealthTrackingObjectStore
from segments.object_store.instrumented import PRICED_AS_READS, PRICED_AS_WRITES, InstrumentedObjectStore


class BucketCollector(Collector):
    """`look` is called in the loop before each scrape, `collect` in a thread."""

    def __init__(
        self, metered: InstrumentedObjectStore, watched: HealthTrackingObjectStore, settings: ObservabilitySettings
    ) -> None:
        self._metered = metered
        self._watched = watched
        self._settings = settings
        self._state = BucketState.HEALTHY
        self._unwritable_s = 0.0

    def look(self) -> None:
        self._state = self._watched.state
        unwritable = self._watched.unwritable
        self._unwritable_s = unwritable.for_s if unwritable is not None else 0.0

    def collect(self) -> Iterable[Metric]:
        meter = self._metered.meter
        by_operation = [((operation,), seconds) for operation, seconds in meter.seconds.items()]
        yield histograms(
            "tidelog_bucket_request_seconds", "Requests to the bucket: how long they took.", ("operation",), by_operation
        )
        yield counters(
            "tidelog_bucket_errors",
            "Requests to the bucket that failed, by code. CANCELLED: given up, or another of two was faster.",
            ("operation", "code"),
            {**_none_yet(meter.seconds), **meter.errors.copy()}.items(),
        )
        yield counter("tidelog_bucket_written_bytes", "Bytes of objects that were created.", self._metered.bytes_written)
        yield counter("tidelog_bucket_read_bytes", "Bytes that were read from objects.", self._metered.bytes_read)
        yield counter(
            "tidelog_bucket_request_dollars",
            "What the bucket asks for these requests, at price_1000_writes and price_1000_reads.",
            self._dollars(),
        )
        yield gauges(
            "tidelog_bucket_state",
            "1 for the state that the bucket is in, as the last half minute of requests says.",
            ("state",),
            [((state.value,), int(state is self._state)) for state in BucketState],
        )
        yield gauge(
            "tidelog_bucket_unwritable_seconds", "For how long no write has come through that somebody wants.", self._unwritable_s
        )

    def _dollars(self) -> float:
        seconds = self._metered.meter.seconds
        writes = sum(seconds[operation].count for operation in PRICED_AS_WRITES)
        reads = sum(seconds[operation].count for operation in PRICED_AS_READS)
        return (writes * self._settings.price_1000_writes + reads * self._settings.price_1000_reads) / 1000


class MetadataCollector(Collector):
    """Of etcd, or of SQLite, which only lacks what etcd tells of itself."""

    def __init__(self, metadata: InstrumentedMetadataStore) -> None:
        self._metadata = metadata
        self._silent_s = 0.0

    def look(self) -> None:
        self._silent_s = self._metadata.idle_s

    def collect(self) -> Iterable[Metric]:
        meter = self._metadata.meter
        by_operation = [((operation,), seconds) for operation, seconds in meter.seconds.items()]
        yield histograms(
            "tidelog_metadata_request_seconds",
            "Requests to the metadata store (etcd, or SQLite): how long they took.",
            ("operation",),
            by_operation,
        )
        yield counters(
            "tidelog_metadata_errors",
            "Requests to the metadata store that failed, by code.",
            ("operation", "code"),
            {**_none_yet(meter.seconds), **meter.errors.copy()}.items(),
        )
        yield counter("tidelog_metadata_watch_events", "Changes that watches of the metadata told.", self._metadata.watch_events)
        yield gauge(
            "tidelog_metadata_silent_seconds",
            "For how long the metadata store has answered nothing. A few seconds are usual.",
            self._silent_s,
        )
        told = self._metadata.etcd
        sizes = [((), float(told.db_size_bytes))] if told is not None else []
        yield gauges("tidelog_etcd_database_bytes", "Size of the database of the etcd member that is asked.", (), sizes)
        leaders = [((), float(told.leader != 0))] if told is not None else []
        yield gauges("tidelog_etcd_has_leader", "1 where that member knows a leader.", (), leaders)
        full = [((), float(told.is_full))] if told is not None else []
        yield gauges("tidelog_etcd_no_space", "1 where etcd takes no writes, since its database is full (NOSPACE).", (), full)
        changes = [((), float(told.leader_changes))] if told is not None else []
        yield counters("tidelog_etcd_leader_changes", "Changes of etcd's leader that were seen.", (), changes)


def _none_yet(operations: Iterable[str]) -> dict[tuple[str, str], int]:
    """A counter that is there before its first error, so that rates of it can be had."""
    return {(operation, "UNAVAILABLE"): 0 for operation in operations}
