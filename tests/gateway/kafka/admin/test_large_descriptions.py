"""DescribeConfigs for very many topics: the memory of its answer, and how long it holds the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.kafka.admin.configs import UNRESERVED_MAX, KafkaConfigs
from gateway.kafka.call import KafkaCall
from gateway.kafka.protocol.admin_messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    encode_describe_configs_response,
)
from gateway.records.response_budget import ResponseBudget
from gateway.settings import GatewaySettings
from metadata.errors import UnknownTopic
from metadata.topics.settings import SETTINGS
from metadata.topics.topic import Topic
from tests.kit.gateway.kafka_client import KEYS
from tests.kit.gateway.kafka_codec import INSTALLED
from tests.kit.gateway.reported_log import topic
from tests.simulation.virtual_loop import run

TOPIC, GROUP = 2, 32
THROTTLED, UNKNOWN_TOPIC, INVALID_REQUEST = 89, 3, 42
COUNT = 300


async def catches_up(_: Any) -> bool:
    await asyncio.sleep(0)
    return True


def found(_: Any, name: str, *, has_caught_up: bool) -> Topic:
    if name.startswith("missing"):
        raise UnknownTopic(f"there is no topic {name}")
    return topic(name)


@pytest.fixture(autouse=True)
def topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.kafka.admin.configs.catch_up_with_topics", catches_up)
    monkeypatch.setattr("gateway.kafka.admin.configs.topic_in_view", found)


def room() -> ResponseBudget:
    return ResponseBudget(GatewaySettings(), InterruptibleWaits())


def call(version: int = 4) -> KafkaCall:
    connection: Any = SimpleNamespace()
    return KafkaCall(connection, version, "tests", None)


async def describe(
    budget: ResponseBudget, asked: KafkaCall, names: Sequence[str], *, kind: int = TOPIC, keys: Sequence[str] | None = None
) -> DescribeConfigsResponse:
    broker: Any = SimpleNamespace(settings=GatewaySettings())
    resources = [DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys) for name in names]
    return await KafkaConfigs(broker, (), budget).describe(asked, DescribeConfigsRequest(resources=resources))


def decoded(answer: DescribeConfigsResponse, version: int) -> list[Any]:
    frame = b"".join(encode_describe_configs_response(answer, version, 7))
    _, response = INSTALLED.decode_response(KEYS["DescribeConfigs"], frame[4:], version)
    return list(response.results)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_each_resource_is_answered_once_in_order_with_its_configs_or_its_error(version: int) -> None:
    results = decoded(asyncio.run(describe(room(), call(version), ["b", "missing", "a", "b"])), version)
    assert [each.resource_name for each in results] == ["b", "missing", "a"]
    assert [each.error_code for each in results] == [0, UNKNOWN_TOPIC, 0]
    assert [{config.name for config in each.configs} for each in results] == [SETTINGS.keys(), set(), SETTINGS.keys()]
    [group] = decoded(asyncio.run(describe(room(), call(version), ["g"], kind=GROUP)), version)
    assert (group.error_code, group.configs) == (INVALID_REQUEST, [])


def test_an_answer_holds_its_memory_until_the_client_has_received_it() -> None:
    async def main() -> None:
        budget, asked = room(), call()
        answer = await describe(budget, asked, [f"topic-{number}" for number in range(COUNT)])
        size_bytes = sum(map(len, encode_describe_configs_response(answer, 4, 7)))
        assert size_bytes - 32 < budget.bytes_used < size_bytes
        assert budget.bytes_used_peak < 1.5 * size_bytes, "what was reserved for it"
        assert asked.release is not None
        asked.release()
        assert budget.bytes_used == 0

    run(main())


def test_a_description_of_very_many_topics_leaves_half_of_the_memory_to_readers() -> None:
    async def main() -> None:
        budget = ResponseBudget(GatewaySettings(message_bytes_max=1 << 18, answer_bytes_max=1 << 20), InterruptibleWaits())
        codes = [each.error_code for each in decoded(await describe(budget, call(), [f"topic-{n}" for n in range(2 * COUNT)]), 4)]
        assert set(codes) == {0, THROTTLED}
        assert budget.bytes_used < 0.7 * (1 << 20)
        fetch = budget.reserve()
        assert fetch.ask_now(1 << 16), "a reader beside it does not wait"

    run(main())


def test_topics_that_do_not_exist_take_no_memory_for_their_configs() -> None:
    async def main() -> None:
        budget = room()
        await describe(budget, call(), [f"missing-{number}" for number in range(5_000)])
        assert budget.bytes_used_peak < 1 << 20

    run(main())


def test_a_long_answer_waits_for_memory_and_is_throttled_without_any_and_a_short_one_does_not_wait() -> None:
    async def main() -> None:
        budget = room()
        others = budget.reserve()
        assert others.ask_now(GatewaySettings().answer_bytes_max, bytes_least=GatewaySettings().answer_bytes_max)
        names = [f"topic-{number}" for number in range(COUNT)]
        refused = decoded(await describe(budget, call(), names), 4)
        assert [each.error_code for each in refused] == [THROTTLED] * COUNT
        assert {each.error_code for each in decoded(await describe(budget, call(), names[:UNRESERVED_MAX]), 4)} == {0}
        waiting = asyncio.ensure_future(describe(budget, call(), names))
        await asyncio.sleep(1)
        others.keep(0)
        assert {each.error_code for each in decoded(await waiting, 4)} == {0}

    run(main())


def test_each_topic_is_encoded_in_a_turn_of_the_event_loop_of_its_own() -> None:
    async def main() -> int:
        turns = 0
        describing = asyncio.ensure_future(describe(room(), call(), [f"topic-{number}" for number in range(COUNT)]))
        while not describing.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(main()) >= COUNT
