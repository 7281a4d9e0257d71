"""Serves /v1/storage, /v1/costs and /v1/verification: where the bytes of the bucket are, what they cost, whether they are sound.

Answers list the topics that the caller may describe. Figures of the whole bucket are for those who may describe the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from fastapi import FastAPI, Query
from msgspec import Meta, Struct

from gateway.access.authorization import check_cluster, may_see_cluster, may_see_topic, present_principal
from gateway.api import BrokerApi
from gateway.concurrency.offload import LoopYielder
from gateway.http.admin.access import PageSize
from gateway.telemetry.settings import PRICES_NOTE, TelemetrySettings
from gateway.topics.usage.cluster_usage import sum_of_histories
from gateway.topics.usage.cost_forecast import Forecast, Prices, TopicCost
from gateway.topics.usage.service import StorageReport, UsageService
from gateway.topics.usage.storage_report import StoredTopic
from gateway.topics.usage.verification import Verification
from metadata.errors import InvalidArgument
from metadata.topics.registry import page_of

Order = Annotated[
    Literal["name", "bytes"],
    Query(description="bytes: the largest first, of which only the first page is given; name: all, by pages."),
]
Names = Annotated[str, Query(description="Only these topics: their names, with commas between them. Empty: all.")]
Price = Annotated[
    float | None, Query(ge=0, le=1e6, allow_inf_nan=False, description="In dollars, in place of the broker's setting.")
]
_PAGE_SIZE: Final = 100
# Topics that are looked at before others may get their turn on the event loop.
_AT_ONCE: Final = 100


class TopicStorageAnswer(Struct):
    """Says where the bytes of a topic are, and how fast it is written and read."""

    name: str
    id: str
    partition_count: int
    partitions_known: Annotated[int, Meta(description="Partitions whose leader has answered: the figures are of these.")]
    bytes: Annotated[int, Meta(description="Of the bucket: segment_bytes, parquet_bytes, replaced_bytes and note_bytes.")]
    segment_bytes: Annotated[int, Meta(description="Batches in segments that are in no Parquet file yet.")]
    parquet_bytes: Annotated[int, Meta(description="Parquet files that the newest manifests name.")]
    parquet_files: int
    replaced_bytes: Annotated[int, Meta(description="Parquet files that no newest manifest names; they are deleted after a grace.")]
    note_bytes: Annotated[
        int | None, Meta(description="Manifests and notes of settings; null before the first listing, as the next.")
    ]
    objects: Annotated[int | None, Meta(description="Objects below topics/; segments hold batches of several topics.")]
    bytes_in_per_second: Annotated[float, Meta(description="Batches written, over the last five minutes.")]
    bytes_out_per_second: float
    history: Annotated[list[float], Meta(description="Bytes written a second, minute by minute, the newest last: up to 30.")]


class KindAnswer(Struct):
    """Counts the objects of one kind."""

    kind: str
    objects: int
    bytes: int


class BucketAnswer(Struct):
    """Says what a listing of the bucket found."""

    age_ms: Annotated[
        int,
        Meta(description="How long ago the listing began. Another begins after a minute; with many objects, after up to 15."),
    ]
    took_ms: int
    requests: Annotated[int, Meta(description="LISTs that it took.")]
    cut: Annotated[list[str], Meta(description="Prefixes with too many objects to list all; their figures are too low.")]
    objects: int
    bytes: int
    kinds: list[KindAnswer]
    sessions: int
    sealed_sessions: int
    trimmed_objects: Annotated[int, Meta(description="Segments whose records are all in Parquet; deleted after a grace.")]
    trimmed_bytes: int
    unowned_segment_bytes: Annotated[
        int, Meta(description="Of segments: headers, footers, and batches that are in Parquet already. They belong to no topic.")
    ]
    deleted_topic_bytes: int
    other_bytes: Annotated[int, Meta(description="Claims, indexes, metadata, staged rows, and all else.")]


class StorageAnswer(Struct):
    """Says where the bytes of the bucket are."""

    topics: list[TopicStorageAnswer]
    next_page_token: Annotated[str, Meta(description="Empty on the last page.")]
    bucket: Annotated[
        BucketAnswer | None,
        Meta(description="Null before the first listing has ended, and without the right to describe the cluster."),
    ]
    segment_bytes: Annotated[int, Meta(description="Of all topics that the caller may describe, as the next three.")]
    bytes_in_per_second: float
    bytes_out_per_second: float
    history: list[float]
    is_listing: bool
    listing_error: Annotated[str, Meta(description="Why the last listing failed.")]
    silent_brokers: Annotated[
        dict[str, str], Meta(description="Brokers that did not answer, with the reason. Their figures are missing.")
    ]


class PricesAnswer(Struct):
    """Holds the prices of a forecast, in dollars."""

    price_1000_writes: float
    price_1000_reads: float
    price_gib_month: float
    note: str


class RequestCostAnswer(Struct):
    """Says what requests of one kind cost in 30 days."""

    operation: str
    kind: str
    requests: float
    bytes: float
    dollars: float
    measured: Annotated[bool, Meta(description="Whether it was counted; else it is estimated, of a compactor that no broker runs.")]


class TopicCostAnswer(Struct):
    """Says what a topic costs in 30 days."""

    name: str
    dollars: float
    storage_dollars: float
    request_dollars: Annotated[float, Meta(description="Its share of the PUTs of segments, by the bytes that are written.")]
    mean_bytes: float


class ChangeAnswer(Struct):
    """Says what another value of a setting would make of the forecast."""

    setting: str
    topic: Annotated[str, Meta(description="Empty for a setting of brokers or compactors.")]
    now: str
    then: str
    dollars_less: float
    price_of_it: str


class ClusterCostsAnswer(Struct):
    """Says what the whole cluster costs in 30 days."""

    dollars: float
    request_dollars: float
    storage_dollars: float
    other_storage_dollars: Annotated[float, Meta(description="Of bytes that belong to no topic, among storage_dollars.")]
    requests: list[RequestCostAnswer]
    changes: Annotated[list[ChangeAnswer], Meta(description="The largest saving first. Savings do not add up.")]


class CostsAnswer(Struct):
    """Forecasts what the bucket costs in the next 30 days."""

    prices: PricesAnswer
    measured_seconds_min: Annotated[float, Meta(description="How long the youngest broker has counted its requests.")]
    measured_seconds_max: float
    topics: list[TopicCostAnswer]
    next_page_token: Annotated[str, Meta(description="Empty on the last page.")]
    cluster: Annotated[ClusterCostsAnswer | None, Meta(description="Null without the right to describe the cluster.")]
    silent_brokers: dict[str, str]


class FindingAnswer(Struct):
    """Describes what a verification found."""

    severity: Annotated[str, Meta(description="damage, or note for what is odd but allowed.")]
    where: str
    what: str


class VerificationAnswer(Struct):
    """Describes the last verification of the bucket that this broker has begun."""

    broker_id: str
    state: Annotated[str, Meta(description="none, running, done, failed, cancelled.")]
    begun_by: str
    begun_at_ms: int
    ended_at_ms: Annotated[int, Meta(description="0 while it runs.")]
    segments_read: int
    segments: Annotated[int, Meta(description="As far as is known.")]
    files_read: int
    files: int
    is_sound: bool
    sessions: int
    records: int
    collectable_objects: Annotated[int, Meta(description="What a compactor deletes once delete_grace_ms is over.")]
    collectable_bytes: int
    findings: Annotated[list[FindingAnswer], Meta(description="Damage first; at most 100.")]
    findings_left_out: int
    error: str
    hint: str


def usage_routes(app: FastAPI, broker: BrokerApi) -> None:
    """Adds the routes of storage, costs and verification."""

    @app.get("/v1/storage", tags=["cluster"])
    async def get_storage(
        page_size: PageSize = 0, page_token: str = "", order: Order = "name", topics: Names = ""
    ) -> StorageAnswer:
        """Says where the bytes of the bucket are: by kind from a listing that is some minutes old, by topic from the leaders."""
        usage = broker.usage
        report = await usage.storage()
        stored, token = await _page(report, page_size=page_size, page_token=page_token, order=order, only=topics)
        seen = [each.figures for each in await _visible(report.of_note)]
        return StorageAnswer(
            topics=[_stored(each) for each in stored],
            next_page_token=token,
            bucket=_bucket(usage, report) if may_see_cluster() else None,
            segment_bytes=sum(each.segment_bytes for each in seen),
            bytes_in_per_second=sum(each.bytes_in_per_second for each in seen),
            bytes_out_per_second=sum(each.bytes_out_per_second for each in seen),
            history=list(await _history([each.history for each in seen if each.history])),
            is_listing=usage.snapshots.is_listing,
            listing_error=usage.snapshots.trouble if may_see_cluster() else "",
            silent_brokers=dict(report.usage.silent),
        )

    @app.get("/v1/costs", tags=["cluster"])
    async def get_costs(
        page_size: PageSize = 0,
        page_token: str = "",
        order: Order = "name",
        topics: Names = "",
        price_1000_writes: Price = None,
        price_1000_reads: Price = None,
        price_gib_month: Price = None,
    ) -> CostsAnswer:
        """Forecasts the cost of the next 30 days, from the rates so far, and says which settings would change it."""
        usage = broker.usage
        set_prices = usage.prices
        prices = Prices(
            set_prices.thousand_writes if price_1000_writes is None else price_1000_writes,
            set_prices.thousand_reads if price_1000_reads is None else price_1000_reads,
            set_prices.gib_month if price_gib_month is None else price_gib_month,
        )
        report = await usage.storage()
        made = await usage.costs(report, prices)
        stored, token = await _page(report, page_size=page_size, page_token=page_token, order=order, only=topics)
        shown = {each.topic.name for each in stored}
        by_name = {each.name: each for each in made.topics if each.name in shown}
        return CostsAnswer(
            prices=PricesAnswer(prices.thousand_writes, prices.thousand_reads, prices.gib_month, _note(broker, prices)),
            measured_seconds_min=report.usage.uptime_min_s,
            measured_seconds_max=report.usage.uptime_max_s,
            topics=[_topic_cost(by_name[each.topic.name]) for each in stored],
            next_page_token=token,
            cluster=_cluster_costs(made) if may_see_cluster() else None,
            silent_brokers=dict(report.usage.silent),
        )

    @app.get("/v1/verification", tags=["cluster"])
    async def get_verification() -> VerificationAnswer:
        """Describes the verification of the bucket that this broker has begun last."""
        check_cluster()
        return _verification(broker, broker.usage.verifier.state)

    @app.post("/v1/verification", tags=["cluster"], status_code=202)
    async def begin_verification() -> VerificationAnswer:
        """Begins to verify the bucket in the background: footers and manifests, not records. One at a time at each broker."""
        check_cluster()
        return _verification(broker, broker.usage.verifier.begin(present_principal()))

    @app.delete("/v1/verification", tags=["cluster"])
    async def cancel_verification() -> VerificationAnswer:
        """Ends the verification of the bucket that runs at this broker."""
        check_cluster()
        return _verification(broker, broker.usage.verifier.cancel())


async def _page(report: StorageReport, *, page_size: int, page_token: str, order: str, only: str) -> tuple[list[StoredTopic], str]:
    """Returns a page of the topics that the caller may see, and the token of the next one."""
    if order == "bytes" and page_token:
        raise InvalidArgument("page_token belongs to order=name", hint="Topics by bytes have one page: raise page_size.")
    names = set(only.split(",")) if only else None
    seen = await _visible([each for each in report.topics if names is None or each.topic.name in names])
    if order == "bytes":
        return sorted(seen, key=lambda each: (-each.bytes, each.topic.name))[: page_size or _PAGE_SIZE], ""
    by_name = {each.topic.name: each for each in seen}
    page = page_of((each.topic for each in seen), page_size=page_size, page_token=page_token)
    return [by_name[topic.name] for topic in page.topics], page.next_page_token


async def _visible(topics: Sequence[StoredTopic]) -> list[StoredTopic]:
    """Returns those that the caller may describe. Yields to the event loop meanwhile, since there may be ten thousand."""
    yielder, seen = LoopYielder(), list[StoredTopic]()
    for first in range(0, len(topics), _AT_ONCE):
        seen += (each for each in topics[first : first + _AT_ONCE] if may_see_topic(each.topic.name))
        await yielder.step()
    return seen


async def _history(histories: Sequence[Sequence[float]]) -> Sequence[float]:
    """Returns the sums, and yields to the event loop meanwhile."""
    yielder, total = LoopYielder(), tuple[float, ...]()
    for first in range(0, len(histories), _AT_ONCE):
        total = sum_of_histories(total, *histories[first : first + _AT_ONCE])
        await yielder.step()
    return total


def _stored(stored: StoredTopic) -> TopicStorageAnswer:
    figures, notes, parquet = stored.figures, stored.notes, stored.parquet
    return TopicStorageAnswer(
        name=stored.topic.name,
        id=stored.topic.id,
        partition_count=stored.topic.partition_count,
        partitions_known=figures.partitions,
        bytes=stored.bytes,
        segment_bytes=figures.segment_bytes,
        parquet_bytes=figures.parquet_bytes,
        parquet_files=figures.parquet_files,
        replaced_bytes=stored.replaced_bytes,
        note_bytes=notes.bytes if notes is not None else None,
        objects=notes.objects + parquet.objects if notes is not None and parquet is not None else None,
        bytes_in_per_second=figures.bytes_in_per_second,
        bytes_out_per_second=figures.bytes_out_per_second,
        history=list(figures.history),
    )


def _bucket(usage: UsageService, report: StorageReport) -> BucketAnswer | None:
    snapshot = report.snapshot
    if snapshot is None:
        return None
    tally, total = snapshot.tally, snapshot.tally.total
    return BucketAnswer(
        age_ms=usage.age_ms(snapshot),
        took_ms=round(1000 * snapshot.took_s),
        requests=snapshot.pages,
        cut=list(snapshot.cut),
        objects=total.objects,
        bytes=total.bytes,
        kinds=[
            KindAnswer(kind, each.objects, each.bytes)
            for kind, each in sorted(tally.kinds.items(), key=lambda item: (-item[1].bytes, item[0]))
        ],
        sessions=tally.sessions,
        sealed_sessions=tally.sealed_sessions,
        trimmed_objects=tally.trimmed.objects,
        trimmed_bytes=tally.trimmed.bytes,
        unowned_segment_bytes=report.unowned.segments,
        deleted_topic_bytes=report.unowned.deleted_topics,
        other_bytes=report.unowned.others,
    )


def _cluster_costs(made: Forecast) -> ClusterCostsAnswer:
    return ClusterCostsAnswer(
        dollars=made.dollars,
        request_dollars=made.request_dollars,
        storage_dollars=made.storage_dollars,
        other_storage_dollars=made.other_storage_dollars,
        requests=[
            RequestCostAnswer(each.operation, each.kind, each.requests, each.bytes, each.dollars, each.is_measured)
            for each in made.requests
        ],
        changes=[ChangeAnswer(*each) for each in made.changes if not each.topic or may_see_topic(each.topic)],
    )


def _topic_cost(cost: TopicCost) -> TopicCostAnswer:
    return TopicCostAnswer(cost.name, cost.dollars, cost.storage_dollars, cost.request_dollars, cost.mean_bytes)


def _note(broker: BrokerApi, prices: Prices) -> str:
    if not broker.bucket_url.startswith("s3:"):
        return f"The bucket is a local directory, which costs none of this. As on {PRICES_NOTE}"
    default = TelemetrySettings()
    is_default = prices == Prices(default.price_1000_writes, default.price_1000_reads, default.price_gib_month)
    return PRICES_NOTE if is_default else "As they were set or asked for. Transfer, tax and tiers are not in them."


def _verification(broker: BrokerApi, state: Verification) -> VerificationAnswer:
    facts = state._asdict() | {"findings": [FindingAnswer(*each) for each in state.findings]}
    return VerificationAnswer(broker_id=broker.broker_id, **facts)
