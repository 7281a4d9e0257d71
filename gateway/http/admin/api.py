"""Topics, partitions, settings, drains, producers over HTTP: FastAPI, where neither speed nor the start of a broker is at stake.

It also serves /openapi.json, with the other routes that openapi.py describes. Errors leave it untold: http/app.py tells them all.
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
from gateway.api import BrokerApi
from gateway.http.admin.access import access_routes
from gateway.http.admin.fastapi_errors import check_query, hand_on, translate_http, translate_validation
from gateway.http.admin.openapi import document
from gateway.http.admin.struct_route import StructRoute
from gateway.http.problem_details import error_members
from gateway.http.struct_body import Body
from gateway.records.append import topic_named
from gateway.routing.log_service import EpochQuestion
from gateway.topics.describe import PartitionDescription, described_topic, listed_topics, partition_states
from gateway.topics.names import naming, partition_of
from metadata.errors import InvalidArgument, TidelogError
from metadata.topics.settings import describe_settings
from metadata.topics.topic import Topic

TopicName = Annotated[str, Path(description="1 to 249 of the characters a-z A-Z 0-9 . _ -")]
ValidateOnly = Annotated[bool, Query(description="Check everything, change nothing.")]
BrokerId = Annotated[str, Path(description="1 to 249 of the characters a-z A-Z 0-9 . _ -")]
PartitionNumber = Annotated[int, Path(ge=0, lt=2**31)]
EpochNumber = Annotated[int, Path(ge=0, lt=2**31)]


class NewTopic(Body):
    example = '{"name":"orders","partition_count":6,"settings":{"retention.ms":86400000}}'

    name: str
    partition_count: Annotated[int, Meta(description="1 to 10,000. It can grow later, never shrink.")] = 6
    settings: Annotated[dict[str, str | int], Meta(description="Those that differ from the defaults, by Kafka's names.")] = field(
        default_factory=dict
    )


class TopicChange(Body):
    example = '{"partition_count":12,"settings":{"retention.ms":null}}'

    partition_count: Annotated[int | None, Meta(description="May only grow.")] = None
    settings: Annotated[dict[str, str | int | None], Meta(description="What changes; null goes back to the default.")] = field(
        default_factory=dict
    )


class NewSettings(Body):
    example = '{"settings":{"retention.ms":86400000}}'

    settings: Annotated[dict[str, str | int], Meta(description="All others go back to their defaults.")]


class TopicAnswer(Struct):
    name: str
    id: str
    partition_count: int
    settings: dict[str, str]
    created_at_ms: int


class PartitionAnswer(Struct, omit_defaults=True):
    partition: int
    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    leader: Annotated[str, Meta(description="Broker id; empty where nobody leads.")]
    leader_http_address: Annotated[str, Meta(description="Where requests for the partition need no second hop.")]
    leader_grpc_address: str
    error: Annotated[
        dict[str, Any] | None,
        Meta(description="Why its offsets are -1: damage, no leader, or a leader that does not answer; as in a problem."),
    ] = None


class DescribedTopic(TopicAnswer):
    partitions: list[PartitionAnswer]


class TopicPageAnswer(Struct):
    topics: list[TopicAnswer]
    next_page_token: Annotated[str, Meta(description="Empty on the last page.")]


class PartitionsAnswer(Struct):
    partitions: list[PartitionAnswer]


class SettingAnswer(Struct):
    name: str
    value: str
    default: str
    unit: str
    meaning: str
    allowed: str
    inert: Annotated[bool, Meta(description="It is stored for Kafka's tools, and changes nothing.")]


class SettingsAnswer(Struct):
    settings: list[SettingAnswer]


class DrainAnswer(Struct):
    broker_id: str
    draining: bool
    partitions_led: Annotated[int, Meta(description="0 of a broker that drains: it may be stopped, and nothing moves.")]


class ExplanationAnswer(Struct, omit_defaults=True):
    tier: Annotated[str, Meta(description="segment, or parquet once the record was compacted.")]
    object_key: str
    range_start: Annotated[
        int, Meta(description="The bytes of the batch, or of the row group, are [range_start, range_end) of the object.")
    ]
    range_end: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    batch_crc32c: Annotated[int, Meta(description="Of a row group: of its bytes, as the manifest says.")]
    in_hot_pool: bool
    session: Annotated[int | None, Meta(description="This and the next of a record in a segment.")] = None
    segment_seq: int | None = None
    row_group: Annotated[int | None, Meta(description="This and the next of a record in Parquet: the group's number, from 0.")] = (
        None
    )
    file_checksum: Annotated[str | None, Meta(description="The sum over the file's records, whatever their order.")] = None


class EpochEndAnswer(Struct):
    leader_epoch: Annotated[
        int, Meta(description="The largest up to the asked one that has records; where there is none, -1, as the end offset.")
    ]
    end_offset: Annotated[int, Meta(description="Behind its last record; of the present leader epoch, the high watermark.")]


class DeletedRecords(Body):
    example = '{"before_offset":1000}'

    before_offset: Annotated[
        int, Meta(ge=-1, le=2**63 - 1, description="Records before it are deleted; -1: all that is committed now.")
    ]


class LogStartAnswer(Struct):
    log_start_offset: Annotated[int, Meta(description="From now on; with validate_only, as it would be.")]


class ProducerAnswer(Struct):
    producer_id: int
    producer_epoch: int


def admin_api(broker: BrokerApi) -> FastAPI:
    app = FastAPI(
        title="Tidelog",
        version=broker.version,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(check_query)],
        exception_handlers={HTTPException: translate_http, RequestValidationError: translate_validation, Exception: hand_on},
        redirect_slashes=False,
    )
    app.router.route_class = StructRoute
    _topic_routes(app, broker)
    _cluster_routes(app, broker)
    access_routes(app, broker)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]  # FastAPI's own way to extend it
    return app


def _topic_routes(app: FastAPI, broker: BrokerApi) -> None:
    @app.get("/v1/topics", tags=["topics"])
    async def list_topics(
        page_size: Annotated[int, Query(ge=0, le=1000, description="0: 100.")] = 0, page_token: str = ""
    ) -> TopicPageAnswer:
        page = listed_topics(broker, page_size=page_size, page_token=page_token)
        return TopicPageAnswer(topics=[_topic(topic) for topic in page.topics], next_page_token=page.next_page_token)

    @app.post("/v1/topics", tags=["topics"], status_code=201)
    async def create_topic(new: NewTopic, response: Response, validate_only: ValidateOnly = False) -> TopicAnswer:
        check_topic(new.name)
        topic = await broker.create_topic(new.name, new.partition_count, _texts(new.settings), validate_only=validate_only)
        if validate_only:
            response.status_code = 200
        else:
            response.headers["location"] = f"/v1/topics/{topic.name}"
        return _topic(topic)

    @app.get("/v1/topics/{topic}", tags=["topics"])
    async def get_topic(topic: TopicName) -> DescribedTopic:
        found = await described_topic(broker, topic)
        return DescribedTopic(
            **msgspec.structs.asdict(_topic(found)), partitions=_partitions(await partition_states(broker, found))
        )

    @app.patch("/v1/topics/{topic}", tags=["topics"])
    async def alter_topic(topic: TopicName, change: TopicChange, validate_only: ValidateOnly = False) -> TopicAnswer:
        if change.partition_count is None and not change.settings:
            raise InvalidArgument("the request changes nothing", hint="Give partition_count or settings.")
        check_topic(topic)
        settings = {name: None if value is None else str(value) for name, value in change.settings.items()}
        altered = await broker.alter_topic(
            topic, settings=settings, partition_count=change.partition_count, validate_only=validate_only
        )
        return _topic(altered)

    @app.delete("/v1/topics/{topic}", tags=["topics"], status_code=204)
    async def delete_topic(topic: TopicName, validate_only: ValidateOnly = False) -> None:
        check_topic(topic)
        await broker.delete_topic(topic, validate_only=validate_only)

    @app.get("/v1/topics/{topic}/settings", tags=["topics"])
    async def get_settings(topic: TopicName) -> SettingsAnswer:
        return _settings(await described_topic(broker, topic))

    @app.put("/v1/topics/{topic}/settings", tags=["topics"])
    async def replace_settings(topic: TopicName, new: NewSettings, validate_only: ValidateOnly = False) -> SettingsAnswer:
        check_topic(topic)
        altered = await broker.alter_topic(topic, settings=_texts(new.settings), replace_settings=True, validate_only=validate_only)
        return _settings(altered)

    @app.get("/v1/topics/{topic}/partitions", tags=["topics"])
    async def list_partitions(topic: TopicName) -> PartitionsAnswer:
        return PartitionsAnswer(partitions=_partitions(await partition_states(broker, await described_topic(broker, topic))))

    @app.get("/v1/topics/{topic}/partitions/{partition}", tags=["topics"])
    async def get_partition(topic: TopicName, partition: PartitionNumber) -> PartitionAnswer:
        return _partitions(await partition_states(broker, await described_topic(broker, topic), [partition]))[0]

    @app.get("/v1/topics/{topic}/partitions/{partition}/offsets/{offset}/explain", tags=["topics"])
    async def explain(
        topic: TopicName, partition: PartitionNumber, offset: Annotated[int, Path(ge=0, lt=2**63)]
    ) -> ExplanationAnswer:
        found = topic_named(broker, topic)
        with naming(found):
            explained = await broker.cluster_log.explain(partition_of(found, partition), offset)
        facts = explained._asdict()
        return ExplanationAnswer(tier=explained.tier, batch_crc32c=facts.pop("crc32c"), **facts)

    @app.get("/v1/topics/{topic}/partitions/{partition}/leader-epochs/{leader_epoch}", tags=["topics"])
    async def get_leader_epoch(
        topic: TopicName,
        partition: PartitionNumber,
        leader_epoch: EpochNumber,
        current_leader_epoch: Annotated[int | None, Query(ge=0, lt=2**31, description="Only of the leader of this epoch.")] = None,
    ) -> EpochEndAnswer:
        """Where the records of a leader epoch end: whether what was read is still the log. 503 for an epoch above the leader's."""
        found = topic_named(broker, topic)
        question = EpochQuestion(partition_of(found, partition), leader_epoch, current_leader_epoch)
        with naming(found):
            [end] = await broker.cluster_log.ends_of_epochs([question])
            if isinstance(end, TidelogError):
                raise end
        return EpochEndAnswer(**end._asdict())

    @app.post("/v1/topics/{topic}/partitions/{partition}/delete-records", tags=["topics"])
    async def delete_records(
        topic: TopicName, partition: PartitionNumber, records: DeletedRecords, validate_only: ValidateOnly = False
    ) -> LogStartAnswer:
        """Raises the log start. Records before it are not read any more from then on, and leave the bucket after a while."""
        found = topic_named(broker, topic)
        note_validate_only(validate_only)
        with naming(found):
            log_start_offset = await broker.cluster_log.delete_records(
                partition_of(found, partition), records.before_offset, validate_only=validate_only
            )
        return LogStartAnswer(log_start_offset=log_start_offset)


def _cluster_routes(app: FastAPI, broker: BrokerApi) -> None:
    @app.post("/v1/brokers/{broker_id}/drain", tags=["cluster"])
    async def drain_broker(broker_id: BrokerId, validate_only: ValidateOnly = False) -> DrainAnswer:
        """Asks the broker to hand over what it leads, and to take no more. Answers at once; ask again to see what is left."""
        return DrainAnswer(**(await broker.drain(broker_id, draining=True, validate_only=validate_only))._asdict())

    @app.post("/v1/brokers/{broker_id}/undrain", tags=["cluster"])
    async def undrain_broker(broker_id: BrokerId, validate_only: ValidateOnly = False) -> DrainAnswer:
        """The broker takes partitions again."""
        return DrainAnswer(**(await broker.drain(broker_id, draining=False, validate_only=validate_only))._asdict())

    @app.post("/v1/producers", tags=["records"], status_code=201)
    async def init_producer() -> ProducerAnswer:
        """A producer id for idempotent produce: sequences begin at 0 in each partition."""
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
