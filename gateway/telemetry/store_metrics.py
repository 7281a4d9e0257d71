"""Metrics of the services below a process, in brokers and compactors: the bucket, and the metadata store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.telemetry.registry import MetricsRegistry
from gateway.telemetry.settings import TelemetrySettings
from metadata.measurements import counter, gauge
from metadata.store.instrumented import InstrumentedMetadataStore
from segments.object_store.health import HealthState
from segments.object_store.health_tracking import HealthTrackingObjectStore
from segments.object_store.instrumented import PRICED_AS_READS, PRICED_AS_WRITES, BucketMeter, InstrumentedObjectStore


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """The state of the bucket at a scrape, and the price of its requests so far."""

    dollars: float = counter(
        "tidelog_bucket_request_dollars", "Price of the requests to the bucket, at price_1000_writes and price_1000_reads."
    )
    state: Mapping[str, int] = gauge(
        "tidelog_bucket_state",
        "1 for the state that the bucket is in, as the last half minute of requests says.",
        labels=("state",),
    )
    unwritable_s: float = gauge(
        "tidelog_bucket_unwritable_seconds", "How long writes to the bucket have failed or hung; 0 while they succeed."
    )


@dataclass(frozen=True, slots=True)
class MetadataStatus:
    """The metadata store at a scrape: the age of its last answer, and the figures of etcd, which are None on SQLite."""

    idle_s: float = gauge(
        "tidelog_metadata_silent_seconds",
        "For how long the metadata store has answered nothing. A few seconds are usual.",
    )
    etcd_bytes: float | None = gauge("tidelog_etcd_database_bytes", "Size of the database of the etcd member that is asked.")
    etcd_has_leader: float | None = gauge("tidelog_etcd_has_leader", "1 where that member knows a leader.")
    etcd_is_full: float | None = gauge(
        "tidelog_etcd_no_space", "1 where etcd takes no writes, since its database is full (NOSPACE)."
    )
    etcd_leader_changes: float | None = counter("tidelog_etcd_leader_changes", "Changes of etcd's leader that were seen.")


def register_stores(
    metrics: MetricsRegistry,
    bucket: HealthTrackingObjectStore,
    calls: InstrumentedObjectStore,
    metadata: InstrumentedMetadataStore,
    settings: TelemetrySettings,
) -> None:
    """Registers the metrics of both stores. `calls` is the store below `bucket` that counts."""
    state, unwritable_s, idle_s = HealthState.HEALTHY, 0.0, 0.0

    def sample() -> None:
        nonlocal state, unwritable_s, idle_s
        state, idle_s = bucket.state, metadata.idle_s
        unwritable_s = bucket.unwritable.for_s if bucket.unwritable is not None else 0.0

    def measure() -> tuple[object, ...]:
        states = {each.value: int(each is state) for each in HealthState}
        status = BucketStatus(_dollars(calls.meter, settings), states, unwritable_s)
        return calls.meter, status, metadata.meter, _metadata_status(metadata, idle_s)

    metrics.add_sampler(sample)
    metrics.register(measure)


def _dollars(meter: BucketMeter, settings: TelemetrySettings) -> float:
    writes = sum(meter.seconds[operation].count for operation in PRICED_AS_WRITES)
    reads = sum(meter.seconds[operation].count for operation in PRICED_AS_READS)
    return (writes * settings.price_1000_writes + reads * settings.price_1000_reads) / 1000


def _metadata_status(metadata: InstrumentedMetadataStore, idle_s: float) -> MetadataStatus:
    etcd = metadata.etcd
    if etcd is None:
        return MetadataStatus(idle_s, None, None, None, None)
    return MetadataStatus(idle_s, etcd.db_size_bytes, etcd.leader != 0, etcd.is_full, etcd.leader_changes)
