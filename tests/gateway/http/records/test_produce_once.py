"""The Idempotency-Key: whatever happened meanwhile, a repeat returns the offsets of its records, and writes nothing twice."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop

from gateway.http.records import produce as records_produce
from gateway.process.broker_process import run_broker
from gateway.settings import BrokerSettings, GatewaySettings
from gateway.topics.names import partition_of
from metadata.errors import SessionFenced
from segments.log.leadership_check import LeadershipCheck
from segments.log.session_log import SessionLog
from segments.settings import KIB
from tests.gateway.http.records.test_produce import ARROW, NDJSON, arrow, values
from tests.kit.gateway.http_client import Answer, Client, serve
from tests.kit.gateway.small_broker import PATIENCE_S, SmallBroker, until

pytestmark = pytest.mark.slow

ORDERS = "/v1/topics/orders/records"
KEYED = [{"key": f"k{number}", "value": str(number)} for number in range(12)]


async def grow(broker: SmallBroker, partition_count: int) -> None:
    await broker.alter_topic("orders", partition_count=partition_count)


async def count(broker: SmallBroker) -> int:
    partition_count = broker.topic_cache.get("orders").partition_count
    return sum([len(await values(broker, "orders", partition)) for partition in range(partition_count)])


def positions(answer: Answer) -> list[tuple[int, int]]:
    assert answer.status == 200, answer
    return [(result["partition"], result["offset"]) for result in answer.json["results"]]


def repeated(answer: Answer) -> list[bool]:
    return ["duplicate" in result for result in answer.json["results"]]


# ── the topic has grown ─────────────────────────────────────────────────────────────────────────────────────────────────

BODIES = {
    "keyed": ("application/json", b'{"records":[%b]}' % b",".join(b'{"key":"k%d","value":1}' % number for number in range(12))),
    "keyless": ("application/json", b'{"records":[{"value":1}]}'),
    "lines": (NDJSON, b"\n".join(b'{"key":"k%d"}' % number for number in range(12)) + b"\n{}"),
    "columns": (ARROW, arrow(key=[None, *(f"k{number}" for number in range(12))], value=["v"] * 13)),
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_repeat_after_the_topic_has_grown_returns_the_partitions_of_the_first_time(tmp_path: Path, kind: str) -> None:
    content_type, body = BODIES[kind]

    async def scenario(broker: SmallBroker, client: Client) -> None:
        for number in range(4):  # of four keys, some choose another partition among five than among three
            headers = {"idempotency_key": f"key-{number}", "accept": "application/json"}
            first = await client.post(ORDERS, body, content_type, **headers)
            assert not any(repeated(first))
            await grow(broker, 4 + number)
            again = await client.post(ORDERS, body, content_type, **headers)
            assert positions(again) == positions(first)
            assert all(repeated(again))
            assert await count(broker) == (number + 1) * len(positions(first))

    serve(tmp_path, scenario)


def test_a_new_key_goes_to_the_partitions_that_were_added(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce(ORDERS, KEYED, idempotency_key="old")
        await grow(broker, 9)
        found = await client.produce(ORDERS, KEYED, idempotency_key="new")
        assert max(partition for partition, _ in positions(found)) > 2

    serve(tmp_path, scenario)


def test_two_of_one_key_between_which_the_topic_grows_are_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first was routed over three partitions, and while it was encoded in a thread the second was appended over nine."""
    planning, go_on = threading.Event(), threading.Event()
    plan_body = records_produce.plan_body

    def slowly_the_first_time(*args: Any, **arguments: Any) -> Any:
        if not planning.is_set():
            planning.set()
            assert go_on.wait(60)
        return plan_body(*args, **arguments)

    monkeypatch.setattr(records_produce, "plan_body", slowly_the_first_time)
    monkeypatch.setattr(records_produce, "THREAD_BYTES", 0)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        first = asyncio.ensure_future(client.produce(ORDERS, KEYED, idempotency_key="k"))
        await until(planning.is_set)
        await grow(broker, 9)
        second = await client.produce(ORDERS, KEYED, idempotency_key="k")
        go_on.set()
        assert not any(repeated(second))
        assert positions(await first) == positions(second)
        assert all(repeated(await first))
        assert await count(broker) == len(KEYED)

    serve(tmp_path, scenario)


# ── another request under the same key ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("query", "records"),
    [
        ("", [{"value": "b", "partition": 1}]),
        ("", [{"value": "a", "partition": 0}, {"value": "a", "partition": 2}]),
        ("", [{"value": "a", "partition": 0}] * 2),
        ("?partition=1", [{"value": "a", "partition": 0}]),
        ("?expected_offset=1", [{"value": "a", "partition": 0}]),
    ],
)
def test_another_request_is_refused_wherever_its_records_would_go(
    tmp_path: Path, query: str, records: list[dict[str, Any]]
) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert positions(await client.produce(ORDERS, [{"value": "a", "partition": 0}], idempotency_key="k")) == [(0, 0)]
        refused = await client.produce(ORDERS + query, records, idempotency_key="k")
        assert (refused.status, refused.json["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
        assert refused.json["nothing_was_written"]
        assert "another body, Content-Type, partition or expected_offset" in refused.json["detail"]
        assert await count(broker) == 1

    serve(tmp_path, scenario)


def test_parameters_that_do_not_change_the_meaning_may_differ_in_a_repeat(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        path = f"{ORDERS}?partition=2&expected_offset=0"
        first = await client.produce(f"{path}&acks=leader", [{"value": 1}], idempotency_key="k")
        again = await client.produce(f"{path}&acks=all&timeout_ms=30000", [{"value": 1}], idempotency_key='"k"', accept=NDJSON)
        assert (again.lines, repeated(first)) == ([{"partition": 2, "offset": 0, "duplicate": True}], [False])
        assert await count(broker) == 1

    serve(tmp_path, scenario)


def test_a_repeat_is_recognised_though_the_topic_takes_less_by_now(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        records = [{"value": "x" * 6000, "partition": 0}]
        first = await client.produce(ORDERS, records, idempotency_key="k")
        await broker.alter_topic("orders", settings={"max.message.bytes": "2048"})
        assert positions(await client.produce(ORDERS, records, idempotency_key="k")) == positions(first)
        new = await client.produce(ORDERS, records, idempotency_key="another")
        assert (new.status, new.json["code"]) == (413, "TOO_LARGE")
        assert "tidelog topic alter orders --set max.message.bytes=8192" in new.json["hint"]

    serve(tmp_path, scenario, settings=GatewaySettings(message_bytes_max=8 * KIB))


@pytest.mark.parametrize("by", ["idempotency_key", "sequence"])
def test_a_repeat_is_recognised_though_the_topic_takes_its_date_no_more(tmp_path: Path, by: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        records = [{"value": value, "timestamp": 2**50, "partition": 0} for value in ("a", "b")]

        async def produce(number: int) -> Any:
            if by == "idempotency_key":
                return await client.produce(ORDERS, records, idempotency_key=f"key {number}")
            return await client.produce(f"{ORDERS}?producer_id=5&base_sequence={2 * number}", records)

        refused = await produce(0)
        assert (refused.status, refused.json["code"]) == (400, "INVALID_TIMESTAMP")
        assert "a record for orders/0 is dated 1125899906842624 ms" in refused.json["detail"]
        assert "tidelog topic alter orders --set message.timestamp.after.max.ms=" in refused.json["hint"]
        assert await count(broker) == 0
        await broker.alter_topic("orders", settings={"message.timestamp.after.max.ms": str(2**62)})
        first = await produce(0)
        assert not any(repeated(first))
        await broker.alter_topic("orders", settings={"message.timestamp.after.max.ms": "0"})
        again = await produce(0)
        assert (positions(again), repeated(again)) == (positions(first), [True, True])
        new = await produce(1)
        assert (new.status, new.json["code"]) == (400, "INVALID_TIMESTAMP")
        assert await count(broker) == 2

    serve(tmp_path, scenario)


@pytest.mark.parametrize("limit", ["max.message.bytes", "message.timestamp.after.max.ms"])
def test_a_request_that_the_next_leader_may_have_taken_is_not_refused_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        async def sealed(_: SessionLog) -> None:
            raise SessionFenced("another leads")

        records = [{"value": "x" * 6000, "timestamp": 2**42, "partition": 0}]
        await broker.alter_topic("orders", settings={"message.timestamp.after.max.ms": str(2**62)} | {limit: "2048"})
        refused = await client.produce(ORDERS, records, idempotency_key="k")
        assert refused.json["code"] in {"TOO_LARGE", "INVALID_TIMESTAMP"}
        monkeypatch.setattr(LeadershipCheck, "check_not_sealed", sealed)
        again = await client.produce(ORDERS, records, idempotency_key="k")
        assert (again.status, again.json["code"]) == (503, "SESSION_FENCED")

    serve(tmp_path, scenario)


# ── two at once ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value_bytes", [10, 100 * KIB])
def test_concurrent_requests_with_one_idempotency_key_write_once_and_get_the_same_answer(tmp_path: Path, value_bytes: int) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        records = [{"key": f"k{number}", "value": "x" * value_bytes} for number in range(6)]
        answers = await asyncio.gather(*(client.produce(ORDERS, records, idempotency_key="k") for _ in range(8)))
        assert len({tuple(positions(answer)) for answer in answers}) == 1
        assert sum(not any(repeated(answer)) for answer in answers) == 1
        assert await count(broker) == len(records)

    serve(tmp_path, scenario)


@pytest.mark.parametrize("value_bytes", [10, 600 * KIB])
def test_only_one_of_the_concurrent_requests_with_one_key_and_different_bodies_is_written(tmp_path: Path, value_bytes: int) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        bodies = [[{"value": letter * value_bytes, "partition": partition}] for partition, letter in enumerate("abc")]
        answers = await asyncio.gather(*(client.produce(ORDERS, body, idempotency_key="k") for body in bodies))
        assert sorted(answer.status for answer in answers) == [200, 422, 422]
        assert await count(broker) == 1

    serve(tmp_path, scenario)


def test_a_timed_out_produce_gets_a_hint_how_to_retry(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        broker.store.hold()
        path = f"{ORDERS}?timeout_ms=20"
        keyed = await client.produce(path, [{"value": 1}], idempotency_key="k")
        assert (keyed.status, keyed.json["hint"].startswith("Retry the same request with the same Idempotency-Key")) == (504, True)
        bare = await client.produce(path, [{"value": 2}])
        assert "With an Idempotency-Key a retry would be safe" in bare.json["hint"]
        numbered = await client.produce(f"{path}&producer_id=1&base_sequence=0&partition=0", [{"value": 3}])
        assert "same producer id and sequence" in numbered.json["hint"]
        waiting = asyncio.ensure_future(client.produce(ORDERS, [{"value": 1}], idempotency_key="k"))
        broker.store.let_go()
        assert repeated(await waiting) == [True]
        assert await count(broker) == 3

    serve(tmp_path, scenario)


# ── half-written ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("grown_to", [3, 7])
def test_a_repeat_completes_what_was_half_written(tmp_path: Path, grown_to: int) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        lost = partition_of(broker.topic_cache.get("orders"), 1)
        broker.log.partitions.pause(lost)
        first = await client.produce(ORDERS, KEYED, idempotency_key="k")
        failed = ["error" in result for result in first.json["results"]]
        assert {result["partition"] for result, bad in zip(first.json["results"], failed, strict=True) if bad} == {1}
        assert {result["partition"] for result, bad in zip(first.json["results"], failed, strict=True) if not bad} == {0, 2}
        broker.log.partitions.resume(lost)
        if grown_to > 3:
            await grow(broker, grown_to)
        second = await client.produce(ORDERS, KEYED, idempotency_key="k")
        assert repeated(second) == [not bad for bad in failed]
        for old, new, bad in zip(first.json["results"], second.json["results"], failed, strict=True):
            assert old["partition"] == new["partition"]
            assert bad or old["offset"] == new["offset"]
        third = await client.produce(ORDERS, KEYED, idempotency_key="k")
        assert positions(third) == positions(second)
        assert all(repeated(third))
        assert await count(broker) == len(KEYED)

    serve(tmp_path, scenario)


def test_a_request_that_was_half_written_is_completed_by_the_same_request_only(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        lost = partition_of(broker.topic_cache.get("orders"), 1)
        broker.log.partitions.pause(lost)
        await client.produce(ORDERS, [{"value": 1, "partition": 0}, {"value": 1, "partition": 1}], idempotency_key="k")
        broker.log.partitions.resume(lost)
        assert await client.refused(client.produce(ORDERS, [{"value": 1, "partition": 1}], idempotency_key="k")) == (
            422,
            "IDEMPOTENCY_KEY_REUSED",
        )
        assert await count(broker) == 1

    serve(tmp_path, scenario)


# ── after a restart, from the bucket ────────────────────────────────────────────────────────────────────────────────────


def test_after_a_restart_and_growth_a_repeat_is_recognised_and_what_is_missing_completed(tmp_path: Path) -> None:
    settings = BrokerSettings(data_dir=tmp_path / "data", http="127.0.0.1:0", grpc="127.0.0.1:0")

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S):
            async with run_broker(settings) as broker, aiohttp.ClientSession(f"http://{broker.http_address}") as session:
                client = Client(session)
                await broker.create_topic("orders", 3)
                whole = await client.produce(ORDERS, KEYED, idempotency_key="whole")
                broker.log.partitions.pause(partition_of(broker.topic_cache.get("orders"), 1))
                half = await client.produce(f"{ORDERS}?timeout_ms=500", KEYED, idempotency_key="half")
                assert 1 in {result["partition"] for result in half.json["results"] if "error" in result}, "others may be late, too"
            async with run_broker(settings) as broker, aiohttp.ClientSession(f"http://{broker.http_address}") as session:
                client = Client(session)
                await broker.alter_topic("orders", partition_count=8)
                again = await client.produce(ORDERS, KEYED, idempotency_key="whole")
                assert (positions(again), all(repeated(again))) == (positions(whole), True)
                other = client.produce(ORDERS, [{"value": 1, "partition": 7}], idempotency_key="whole")
                assert await client.refused(other) == (422, "IDEMPOTENCY_KEY_REUSED")
                completed = await client.produce(ORDERS, KEYED, idempotency_key="half")
                for old, new in zip(half.json["results"], completed.json["results"], strict=True):
                    assert new["partition"] == old["partition"]
                    assert ("duplicate" in new) == (old["partition"] != 1)
                topic = broker.topic_cache.get("orders")
                ends = [broker.log.partitions.bounds(partition_of(topic, partition)).end_offset for partition in range(8)]
                assert sum(ends) == 2 * len(KEYED)

    uvloop.run(run())
