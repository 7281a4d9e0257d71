"""Serves topics, partitions, settings, drains and producer ids with FastAPI, where neither speed nor start-up time matters.

It also serves /openapi.json, with the other routes that openapi.py describes. It answers no errors itself: http/app.py does.
Invariant: an unknown field or query parameter is refused, so that a mistyped `validate_only` never changes anything.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Path, Query, Response
from fastapi.exceptions import RequestValidationError
from msgspec import Meta, Struct, field
from starlette.exceptions import HTTPException

from gateway.access.authorization import check_topic, note_validate_only
from gateway.access.refusals import settle_topic
from gateway.api import BrokerApi
from gateway.http.admin.access import PageSize, ValidateOnly, access_routes
from gateway.http.admin.cluster_health import cluster_health_routes
from gateway.http.admin.fastapi_errors import check_query, reraise, translate_http, translate_validation
from gateway.http.admin.openapi import document
from gateway.http.admin.refusals import refusal_routes
from gateway.http.admin.struct_route import StructRoute
from gateway.http.admin.topic_readers import topic_reader_routes
from gateway.http.admin.usage import usage_routes
from gateway.http.problem_details import error_members
from gateway.http.struct_body import Body
from gateway.routing.log_service import EpochQuestion
from gateway.topics.describe import PartitionDescription, described_topic, listed_topics, partition_states
from gateway.topics.names import naming, partition_of, topic_with
from metadata.errors import InvalidArgument, TidelogError
from metadata.topics.settings import describe_settings
from metadata.topics.topic import Topic

PlainName = Annotated[str, Path(description="1 to 249 of the characters a-z A-Z 0-9 . _ -")]
PartitionNumber = Annotated[int, Path(ge=0, lt=2**31)]
EpochNumber = Annotated[int, Path(ge=0, lt=2**31)]


class NewTopic(Body):
    """Describes a topic to create."""

    example = '{"name":"orders","partition_count":6,"settings":{"retention.ms":86400000}}'

    name: str
    partition_count: Annotated[int, Meta(description="1 to 10,000. It can grow later, never shrink.")] = 6
    settings: Annotated[dict[str, str | int], Meta(description="Settings that differ from their defaults, by Kafka's names.")] = (
        field(default_factory=dict)
    )


class TopicChange(Body):
    """Describes a change of a topic."""

    example = '{"partition_count":12,"settings":{"retention.ms":null}}'

    partition_count: Annotated[int | None, Meta(description="May only grow.")] = None
    settings: Annotated[
        dict[str, str | int | None], Meta(description="The settings to change; null resets one to its default.")
    ] = field(default_factory=dict)


class NewSettings(Body):
    """Holds all settings of a topic."""

    example = '{"settings":{"retention.ms":86400000}}'

    settings: Annotated[dict[str, str | int], Meta(description="All other settings are reset to their defaults.")]


class TopicAnswer(Struct):
    """Describes a topic."""

    name: str
    id: str
    partition_count: int
    settings: dict[str, str]
    created_at_ms: int


class PartitionAnswer(Struct, omit_defaults=True):
    """Describes a partition."""

    partition: int
    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    leader: Annotated[str, Meta(description="Broker id; empty if the partition has no leader.")]
    leader_http_address: Annotated[str, Meta(description="The address at which requests for the partition need no second hop.")]
    leader_grpc_address: str
    error: Annotated[
        dict[str, Any] | None,
        Meta(description="Why its offsets are -1: damage, no leader, or a silent leader. Members are those of a problem."),
    ] = None


class DescribedTopic(TopicAnswer):
    """Describes a topic with its partitions."""

    partitions: list[PartitionAnswer]


class TopicPageAnswer(Struct):
    """Lists a page of topics."""

    topics: list[TopicAnswer]
    next_page_token: Annotated[str, Meta(description="Empty on the last page.")]


class PartitionsAnswer(Struct):
    """Lists the partitions of a topic."""

    partitions: list[PartitionAnswer]


class SettingAnswer(Struct):
    """Describes a setting of a topic."""

    name: str
    value: str
    default: str
    unit: str
    meaning: str
    allowed: str
    inert: Annotated[bool, Meta(description="Whether it is only stored for Kafka's tools, without effect.")]


class SettingsAnswer(Struct):
    """Lists the settings of a topic."""

    settings: list[SettingAnswer]


class DrainAnswer(Struct):
    """Describes the drain of a broker."""

    broker_id: str
    draining: bool
    partitions_led: Annotated[int, Meta(description="Once a draining broker leads 0 partitions, stopping it moves none.")]


class ExplanationAnswer(Struct, omit_defaults=True):
    """Says where a record lies on the bucket."""

    tier: Annotated[str, Meta(description="segment, or parquet once the record was compacted.")]
    object_key: str
    range_start: Annotated[
        int, Meta(description="The bytes of the batch, or of the row group, are [range_start, range_end) of the object.")
    ]
    range_end: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    batch_crc32c: Annotated[int, Meta(description="Checksum of the batch; of a row group, the one of its bytes in the manifest.")]
    in_tail_cache: bool
    session: Annotated[int | None, Meta(description="Set, with segment_seq, for a record in a segment.")] = None
    segment_seq: int | None = None
    row_group: Annotated[
        int | None, Meta(description="Set, with file_checksum, for a record in Parquet. The number of the row group, from 0.")
    ] = None
    file_checksum: Annotated[str | None, Meta(description="Checksum over the file's records, independent of their order.")] = None


class EpochEndAnswer(Struct):
    """Says where the records of a leader epoch end."""

    leader_epoch: Annotated[
        int,
        Meta(
            description="The largest leader epoch with records, up to the requested one; -1, with end_offset -1, if there is none."
        ),
    ]
    end_offset: Annotated[
        int, Meta(description="The offset after its last record; for the present leader epoch, the high watermark.")
    ]


class DeletedRecords(Body):
    """Says which records to delete."""

    example = '{"before_offset":1000}'

    before_offset: Annotated[
        int, Meta(ge=-1, le=2**63 - 1, description="Deletes the records before it; -1: all committed records.")
    ]


class LogStartAnswer(Struct):
    """Holds the first offset of a log."""

    log_start_offset: Annotated[int, Meta(description="The new log start; with validate_only, the one that the request would set.")]


class ProducerAnswer(Struct):
    """Holds a new producer id."""

    producer_id: int
    producer_epoch: int


def admin_api(broker: BrokerApi) -> FastAPI:
    """Builds the application for all routes that app.py does not serve itself."""
    app = FastAPI(
        title="Tidelog",
        version=broker.version,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(check_query)],
        exception_handlers={HTTPException: translate_http, RequestValidationError: translate_validation, Exception: reraise},
        redirect_slashes=False,
    )
    app.router.route_class = StructRoute
    _topic_routes(app, broker)
    topic_reader_routes(app, broker)
    _cluster_routes(app, broker)
    cluster_health_routes(app, broker)
    access_routes(app, broker)
    refusal_routes(app, broker)
    usage_routes(app, broker)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]  # FastAPI's own way to extend it
    return app


def _topic_routes(app: FastAPI, broker: BrokerApi) -> None:
    @app.get("/v1/topics", tags=["topics"])
    async def list_topics(
        page_size: PageSize = 0,
        page_token: str = "",
        search: Annotated[str, Query(description="Only topics whose name contains this, in upper or lower case.")] = "",
    ) -> TopicPageAnswer:
        page = listed_topics(broker, page_size=page_size, page_token=page_token, search=search)
        return TopicPageAnswer(topics=[_topic(topic) for topic in page.topics], next_page_token=page.next_page_token)

    @app.post("/v1/topics", tags=["topics"], status_code=201)
    async def create_topic(new: NewTopic, response: Response, validate_only: ValidateOnly = False) -> TopicAnswer:
        await settle_topic(new.name)
        check_topic(new.name)
        topic = await broker.create_topic(new.name, new.partition_count, _texts(new.settings), validate_only=validate_only)
        if validate_only:
            response.status_code = 200
        else:
            response.headers["location"] = f"/v1/topics/{topic.name}"
        return _topic(topic)

    @app.get("/v1/topics/{topic}", tags=["topics"])
    async def get_topic(
        topic: PlainName,
        start: Annotated[int, Query(ge=0, lt=2**31, description="The first partition that is described.")] = 0,
        limit: Annotated[int, Query(ge=0, lt=2**31, description="How many partitions are described at most.")] = 2**31 - 1,
    ) -> DescribedTopic:
        found = await described_topic(broker, topic)
        numbers = range(start, min(start + limit, found.partition_count))
        return DescribedTopic(
            **msgspec.structs.asdict(_topic(found)), partitions=_partitions(await partition_states(broker, found, numbers))
        )

    @app.patch("/v1/topics/{topic}", tags=["topics"])
    async def alter_topic(topic: PlainName, change: TopicChange, validate_only: ValidateOnly = False) -> TopicAnswer:
        if change.partition_count is None and not change.settings:
            raise InvalidArgument("the request changes nothing", hint="Give partition_count or settings.")
        check_topic(topic)
        settings = {name: None if value is None else str(value) for name, value in change.settings.items()}
        altered = await broker.alter_topic(
            topic, settings=settings, partition_count=change.partition_count, validate_only=validate_only
        )
        return _topic(altered)

    @app.delete("/v1/topics/{topic}", tags=["topics"], status_code=204)
    async def delete_topic(topic: PlainName, validate_only: ValidateOnly = False) -> None:
        check_topic(topic)
        await broker.delete_topic(topic, validate_only=validate_only)

    @app.get("/v1/topics/{topic}/settings", tags=["topics"])
    async def get_settings(topic: PlainName) -> SettingsAnswer:
        return _settings(await described_topic(broker, topic))

    @app.put("/v1/topics/{topic}/settings", tags=["topics"])
    async def replace_settings(topic: PlainName, new: NewSettings, validate_only: ValidateOnly = False) -> SettingsAnswer:
        check_topic(topic)
        altered = await broker.alter_topic(topic, settings=_texts(new.settings), replace_settings=True, validate_only=validate_only)
        return _settings(altered)

    @app.get("/v1/topics/{topic}/partitions", tags=["topics"])
    async def list_partitions(topic: PlainName) -> PartitionsAnswer:
        return PartitionsAnswer(partitions=_partitions(await partition_states(broker, await described_topic(broker, topic))))

    @app.get("/v1/topics/{topic}/partitions/{partition}", tags=["topics"])
    async def get_partition(topic: PlainName, partition: PartitionNumber) -> PartitionAnswer:
        return _partitions(await partition_states(broker, await topic_with(broker, topic, partition), [partition]))[0]

    @app.get("/v1/topics/{topic}/partitions/{partition}/offsets/{offset}/explain", tags=["topics"])
    async def explain(
        topic: PlainName, partition: PartitionNumber, offset: Annotated[int, Path(ge=0, lt=2**63)]
    ) -> ExplanationAnswer:
        found = await topic_with(broker, topic, partition)
        with naming(found):
            explained = await broker.cluster_log.explain(partition_of(found, partition), offset)
        facts = explained._asdict()
        return ExplanationAnswer(tier=explained.tier, batch_crc32c=facts.pop("crc32c"), **facts)

    @app.get("/v1/topics/{topic}/partitions/{partition}/leader-epochs/{leader_epoch}", tags=["topics"])
    async def get_leader_epoch(
        topic: PlainName,
        partition: PartitionNumber,
        leader_epoch: EpochNumber,
        current_leader_epoch: Annotated[
            int | None, Query(ge=0, lt=2**31, description="The leader epoch that the client knows; another one is refused.")
        ] = None,
    ) -> EpochEndAnswer:
        """Returns where the records of a leader epoch end, for detecting truncation. 503 for an epoch above the leader's."""
        found = await topic_with(broker, topic, partition)
        question = EpochQuestion(partition_of(found, partition), leader_epoch, current_leader_epoch)
        with naming(found):
            [end] = await broker.cluster_log.ends_of_epochs([question])
            if isinstance(end, TidelogError):
                raise end
        return EpochEndAnswer(**end._asdict())

    @app.post("/v1/topics/{topic}/partitions/{partition}/delete-records", tags=["topics"])
    async def delete_records(
        topic: PlainName, partition: PartitionNumber, records: DeletedRecords, validate_only: ValidateOnly = False
    ) -> LogStartAnswer:
        """Raises the log start. Records before it can no longer be read, and are deleted from the bucket later."""
        found = await topic_with(broker, topic, partition)
        note_validate_only(validate_only)
        with naming(found):
            log_start_offset = await broker.cluster_log.delete_records(
                partition_of(found, partition), records.before_offset, validate_only=validate_only
            )
        return LogStartAnswer(log_start_offset=log_start_offset)


def _cluster_routes(app: FastAPI, broker: BrokerApi) -> None:
    @app.post("/v1/brokers/{broker_id}/drain", tags=["cluster"])
    async def drain_broker(broker_id: PlainName, validate_only: ValidateOnly = False) -> DrainAnswer:
        """Starts a drain: the broker hands over its partitions and takes no more. Answers at once; repeat it to see progress."""
        return DrainAnswer(**(await broker.drain(broker_id, draining=True, validate_only=validate_only))._asdict())

    @app.post("/v1/brokers/{broker_id}/undrain", tags=["cluster"])
    async def undrain_broker(broker_id: PlainName, validate_only: ValidateOnly = False) -> DrainAnswer:
        """Ends a drain: the broker takes partitions again."""
        return DrainAnswer(**(await broker.drain(broker_id, draining=False, validate_only=validate_only))._asdict())

    @app.post("/v1/producers", tags=["records"], status_code=201)
    async def init_producer() -> ProducerAnswer:
        """Returns a producer id for idempotent produce; sequences begin at 0 in each partition."""
        return ProducerAnswer(producer_id=broker.producer_ids.next(), producer_epoch=0)


def _topic(topic: Topic) -> TopicAnswer:
    return msgspec.convert(topic, TopicAnswer, from_attributes=True)


def _partitions(states: list[PartitionDescription]) -> list[PartitionAnswer]:
    return [
        PartitionAnswer(**state._asdict() | {"error": error_members(state.error) if state.error is not None else None})
        for state in states
    ]


def _settings(topic: Topic) -> SettingsAnswer:
    return SettingsAnswer(
        settings=[
            SettingAnswer(
                name=described.definition.name,
                value=described.value,
                default=described.definition.default,
                unit=described.definition.unit,
                meaning=described.definition.meaning,
                allowed=described.definition.allowed,
                inert=described.definition.inert,
            )
            for described in describe_settings(topic.settings)
        ]
    )


def _texts(settings: dict[str, str | int]) -> dict[str, str]:
    return {name: str(value) for name, value in settings.items()}
