"""What the Kafka consumer of a world reports of a fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.kafka.protocol.hot_messages import FetchableTopicResponse, FetchResponse, PartitionData
from metadata.model import TopicId
from metadata.topics.topic import Topic
from tests.simulation.history_checker import Fetched
from tests.simulation.kafka_clients import KnownLeader
from tests.simulation.kafka_readers import KafkaReader
from tests.simulation.virtual_loop import run

LEADER, IN_RACK, EPOCH = 1, 2, 5
TOPIC = Topic(id=TopicId("0123456789abcdef" * 2), name="orders", partition_count=1, settings={}, created_at_ms=0)


def reported(*, sent_to_rack: bool, meanwhile: Callable[[dict[int, int]], object]) -> Fetched:
    """What a reader reports of a fetch. `meanwhile` changes which brokers of its rack it knows before the answer arrives."""
    events: list[Any] = []

    async def main() -> None:
        clients: Any = SimpleNamespace(seed=0, note=lambda _: None, record=events.append)
        reader = KafkaReader(clients, lambda _: None, "reader", TOPIC.name, rack="here")
        answered: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()

        async def answer(*_: object, **__: object) -> FetchResponse:
            return await answered

        async def line_to(node_id: int) -> Any:
            return SimpleNamespace(host=None, send=lambda *_: None, answer=answer)

        leaders = {0: KnownLeader(LEADER, EPOCH)}
        reader._client = SimpleNamespace(  # type: ignore[assignment]  # a double
            is_stale=False, leaders=leaders, node_of=lambda _: LEADER, line_to=line_to, timeout_s=1.0, learn_node=None
        )
        reader._find_positions = _nothing  # type: ignore[method-assign,assignment]  # a double
        reader._partitions[0] = _position()
        if sent_to_rack:
            reader._preferred[0] = IN_RACK
        async with asyncio.TaskGroup() as fetches:
            await reader._step(TOPIC, fetches)
            meanwhile(reader._preferred)
            data = PartitionData(partition_index=0, high_watermark=3)
            answered.set_result(FetchResponse(responses=[FetchableTopicResponse(topic=TOPIC.name, partitions=[data])]))

    run(main())
    [event] = events
    assert isinstance(event, Fetched)
    return event


async def _nothing(*_: object) -> None: ...


def _position() -> Any:
    return SimpleNamespace(offset=0, epoch=-1, holds_for=EPOCH)


@pytest.mark.parametrize("sent_to_rack", [True, False])
@pytest.mark.parametrize(
    "meanwhile",
    [lambda _: None, lambda preferred: preferred.clear(), lambda preferred: preferred.update({0: LEADER})],
    ids=["nothing happens", "the metadata are read again", "another fetch is sent on"],
)
def test_an_answer_may_be_old_if_the_fetch_was_sent_to_a_broker_of_the_rack(
    sent_to_rack: bool, meanwhile: Callable[[dict[int, int]], object]
) -> None:
    assert reported(sent_to_rack=sent_to_rack, meanwhile=meanwhile).may_be_old is sent_to_rack
