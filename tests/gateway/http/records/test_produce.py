from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from yarl import URL

from gateway.settings import GatewaySettings
from gateway.topics.names import partition_of
from segments.log.session_log import FetchTarget
from segments.object_store.health_tracking import StoreTrouble
from segments.read.log_reader import FetchResult
from segments.records.batch import split_batches
from segments.records.batch_kernel import RecordTuple
from segments.records.columns import iterate_records
from segments.settings import KIB, MIB, SegmentSettings
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import NOW_MS, SmallBroker, until
from tests.kit.segments.batches import batch_of, sequenced_batch

pytestmark = pytest.mark.slow

ORDERS = "/v1/topics/orders/records"
SINGLE = "/v1/topics/single/records"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
BATCH = "application/vnd.tidelog.record-batch"


async def records(broker: SmallBroker, topic: str = "single", partition: int = 0) -> list[RecordTuple]:
    """What is committed, straight from the log."""
    topic_partition = partition_of(broker.topic_cache.get(topic), partition)
    (answer,) = await broker.log.reads.fetch([FetchTarget(topic_partition, 0, 64 * MIB)], bytes_max=64 * MIB)
    assert isinstance(answer, FetchResult)
    batches = split_batches(b"".join(answer.batches))
    return [record for batch in batches for record in iterate_records(batch, decompressed_bytes_max=64 * MIB)]


async def values(broker: SmallBroker, topic: str = "single", partition: int = 0) -> list[bytes | None]:
    return [record[3] for record in await records(broker, topic, partition)]


def arrow(**columns: Any) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


# ── four kinds of bodies ────────────────────────────────────────────────────────────────────────────────────────────────


def test_json_records_are_stored_and_answered_with_their_partitions_and_offsets(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.produce(
            ORDERS,
            [
                {"key": "a", "value": {"id": 7}, "partition": 1, "timestamp": 5, "headers": {"trace": "x"}},
                {"value": "text", "partition": 0},
                {"key": None, "value": None, "partition": 1, "timestamp": 6},
            ],
        )
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json == {
            "results": [{"partition": 1, "offset": 0}, {"partition": 0, "offset": 0}, {"partition": 1, "offset": 1}]
        }
        assert await records(broker, "orders", 1) == [
            (0, 5, b"a", b'{"id":7}', (("trace", b"x"),)),
            (1, 6, None, None, ()),
        ]

    serve(tmp_path, scenario)


def test_lines_are_answered_line_by_line(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.post(SINGLE, b'{"value":"a"}\n{"value":"b"}\n', NDJSON)
        assert answer.headers["content-type"] == NDJSON
        assert answer.lines == [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}]
        as_json = await client.post(SINGLE, b'{"value":"c"}', NDJSON, accept="application/json")
        assert as_json.json == {"results": [{"partition": 0, "offset": 2}]}
        assert await values(broker) == [b"a", b"b", b"c"]

    serve(tmp_path, scenario)


def test_arrow_columns_are_stored_and_answered_as_json_or_arrow(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        body = arrow(value=["a", "b", "c"], partition=[0, 1, 0])
        answer = await client.post(ORDERS, body, ARROW)
        assert [(result["partition"], result["offset"]) for result in answer.json["results"]] == [(0, 0), (1, 0), (0, 1)]
        answer = await client.post(ORDERS, body, ARROW, accept=ARROW)
        assert pa.ipc.open_stream(answer.body).read_all().to_pydict() == {
            "partition": [0, 1, 0],
            "offset": [2, 1, 3],
            "error": [None, None, None],
        }
        assert await values(broker, "orders", 0) == [b"a", b"c"] * 2

    serve(tmp_path, scenario)


def test_a_ready_batch_needs_its_partition_and_has_one_result(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        batch = batch_of(b"a", b"b")
        assert (await client.post(f"{ORDERS}?partition=2", batch, BATCH)).json == {
            "results": [{"partition": 2, "offset": 0, "count": 2}]
        }
        assert await values(broker, "orders", 2) == [b"a", b"b"]
        torn = batch[:-1] + bytes([batch[-1] ^ 1])
        for path, body, expected in (
            (ORDERS, batch, (400, "INVALID_ARGUMENT")),
            (f"{ORDERS}?partition=3", batch, (404, "UNKNOWN_PARTITION")),
            (f"{ORDERS}?partition=2", torn, (400, "INVALID_RECORD")),
            (f"{ORDERS}?partition=2", batch[:-1], (400, "INVALID_RECORD")),
            (f"{ORDERS}?partition=2", batch + batch, (400, "INVALID_RECORD")),
            (f"{ORDERS}?partition=2", b"", (400, "INVALID_RECORD")),
            (f"{ORDERS}?partition=2&producer_id=1&base_sequence=0", batch, (400, "INVALID_ARGUMENT")),
        ):
            assert await client.refused(client.post(path, body, BATCH)) == expected
        assert await client.refused(client.post(f"{ORDERS}?partition=2", batch, BATCH, idempotency_key="k")) == (
            400,
            "INVALID_ARGUMENT",
        )
        assert await values(broker, "orders", 2) == [b"a", b"b"]

    serve(tmp_path, scenario)


def test_many_records_in_one_body_are_cut_into_batches_and_keep_their_order(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        sent = [f"{number:06d}" * 20 for number in range(5000)]
        answer = await client.produce(SINGLE, [{"value": value} for value in sent])
        assert [result["offset"] for result in answer.json["results"]] == list(range(5000))
        assert await values(broker) == [value.encode() for value in sent]
        answer = await client.post(SINGLE, arrow(value=sent), ARROW)
        assert [result["offset"] for result in answer.json["results"]] == list(range(5000, 10_000))
        assert (await values(broker))[5000:] == [value.encode() for value in sent]

    serve(tmp_path, scenario, settings=GatewaySettings(message_bytes_max=64 * KIB))


def test_a_chunked_body_of_unknown_length_is_taken(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        async def pieces() -> Any:
            yield b'{"records":[{"val'
            yield b'ue":"a"}]}'

        answer = await client.ask("POST", SINGLE, data=pieces(), headers={"content-type": "application/json"})
        assert answer.status == 200
        assert await values(broker) == [b"a"]

    serve(tmp_path, scenario)


def test_the_partition_of_the_request_is_that_of_records_which_ask_for_none(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.produce(f"{ORDERS}?partition=2", [{"key": "a"}, {"partition": 0}, {"value": 1}])
        assert [result["partition"] for result in answer.json["results"]] == [2, 0, 2]

    serve(tmp_path, scenario)


def test_records_without_a_key_stay_together_and_requests_take_turns(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        found = []
        for _ in range(3):
            answer = await client.produce(ORDERS, [{"value": 1}] * 4)
            (partition,) = {result["partition"] for result in answer.json["results"]}
            found.append(partition)
        assert sorted(found) == [0, 1, 2]

    serve(tmp_path, scenario)


def test_the_brokers_clock_stamps_where_the_topic_says_so(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await broker.create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
        await client.produce("/v1/topics/stamped/records", [{"value": 1, "timestamp": 5}])
        assert [record[1] for record in await records(broker, "stamped")] == [NOW_MS]

    serve(tmp_path, scenario)


# ── what is refused, and changes nothing ────────────────────────────────────────────────────────────────────────────────


def test_one_record_that_can_not_be_taken_refuses_the_whole_request(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        good = {"value": "good", "partition": 0}
        for bad, expected in (
            ({"partition": 9}, (404, "UNKNOWN_PARTITION")),
            ({"partition": -1}, (404, "UNKNOWN_PARTITION")),
            ({"timestamp": -2}, (400, "INVALID_ARGUMENT")),
            ({"value": {"type": "binary", "data": "?"}}, (400, "INVALID_ARGUMENT")),
            ({"value": "x" * 9000}, (413, "TOO_LARGE")),
            ({"headers": {str(number): 1 for number in range(9)}}, (413, "TOO_LARGE")),
            ({"headers": [{"key": 1}]}, (400, "INVALID_ARGUMENT")),
            ({"valeu": 1}, (400, "INVALID_ARGUMENT")),
        ):
            assert await client.refused(client.produce(ORDERS, [good, bad])) == expected
        for bad_arrow, expected in (
            (arrow(value=["a", "b"], partition=[0, 9]), (404, "UNKNOWN_PARTITION")),
            (arrow(value=["a", "x" * 9000]), (413, "TOO_LARGE")),
            (arrow(value=["a"], nonsense=[1]), (400, "INVALID_ARGUMENT")),
            (b"no arrow", (400, "INVALID_ARGUMENT")),
            (b"", (400, "INVALID_ARGUMENT")),
        ):
            assert await client.refused(client.post(ORDERS, bad_arrow, ARROW)) == expected
        for bad_line in (b'{"value":"good"}\n{"value":', b'{"value":"good"}\n[]', b"\n"):
            assert await client.refused(client.post(ORDERS, bad_line, NDJSON)) == (400, "INVALID_ARGUMENT")
        assert [await values(broker, "orders", partition) for partition in range(3)] == [[], [], []]

    serve(tmp_path, scenario, settings=GatewaySettings(message_bytes_max=8 * KIB, record_headers_max=8))


def test_invalid_json_and_utf8_name_their_position(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        reported = (await client.post(SINGLE, b'{"records":[{"value":"\xff"}]}')).json
        assert reported["byte"] == 22
        assert "byte 22" in reported["detail"]
        assert "(byte 25)" in (await client.post(SINGLE, b'{"records":[{"value":nul}]}')).json["detail"]

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("nothing", (404, "UNKNOWN_TOPIC")),
        ("naïve", (400, "INVALID_NAME")),
        ("%2e%2e%2f", (400, "INVALID_NAME")),
        ("a%2Fb", (400, "INVALID_NAME")),
        ("%ff", (400, "INVALID_NAME")),
        ("x" * 250, (400, "INVALID_NAME")),
        ("a%20b", (400, "INVALID_NAME")),
        ("%00", (400, "INVALID_NAME")),
    ],
)
def test_a_topic_that_does_not_or_can_not_exist_is_refused(tmp_path: Path, topic: str, expected: tuple[int, str]) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        url = URL(f"{broker.url}/v1/topics/", encoded=True)
        path = URL(f"{url}{topic}/records", encoded=topic.isascii())
        answer = client.ask("POST", path, json={"records": [{}]})
        assert await client.refused(answer) == expected

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    "query",
    [
        "acks=some",
        "acks=2",
        "timeout_ms=0",
        "timeout_ms=30001",
        "timeout_ms=soon",
        "partition=-1",
        "partition=1.5",
        "expected_offset=-1",
        "producer_id=1",
        "base_sequence=0",
        "producer_epoch=0",
        "producer_id=-1&base_sequence=0",
        "producer_id=4611686018427387904&base_sequence=0",
        "producer_id=1&base_sequence=2147483648",
        "producer_id=1&base_sequence=0&producer_epoch=32768",
        "ack=all",
        "acks=all&acks=all",
        "partition=%ff",
        "partition",
    ],
)
def test_a_query_out_of_its_bounds_is_refused(tmp_path: Path, query: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert await client.refused(client.produce(f"{SINGLE}?{query}", [{}])) == (400, "INVALID_ARGUMENT")
        assert await values(broker) == []

    serve(tmp_path, scenario)


def test_types_that_are_not_read_or_not_answered_are_refused(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for content_type in ("text/plain", "application/octet-stream", "application/jsonx", ""):
            assert await client.refused(client.post(SINGLE, b"{}", content_type)) == (415, "UNSUPPORTED_MEDIA_TYPE")
        zipped = client.post(SINGLE, b"{}", content_encoding="gzip")
        assert await client.refused(zipped) == (415, "UNSUPPORTED_MEDIA_TYPE")
        assert await client.refused(client.produce(SINGLE, [{}], accept="text/html")) == (406, "NOT_ACCEPTABLE")
        assert await client.refused(client.ask("PUT", SINGLE)) == (405, "METHOD_NOT_ALLOWED")
        assert (await client.ask("DELETE", SINGLE)).headers["allow"] == "GET, POST"

    serve(tmp_path, scenario)


def test_a_produce_to_the_path_of_a_partition_gets_a_hint_with_the_right_path(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for method in ("POST", "PUT"):
            answer = await client.ask(method, "/v1/topics/orders/partitions/2/records", json={"records": [{}]})
            assert (answer.status, answer.headers["allow"]) == (405, "GET")
            assert answer.json["hint"] == "Produce with POST /v1/topics/orders/records?partition=2."
        assert (await client.ask("PUT", ORDERS)).json["hint"] == "Produce with POST /v1/topics/orders/records."
        assert (await client.ask("DELETE", ORDERS)).json["hint"] == "Supported: GET, POST."

    serve(tmp_path, scenario)


def test_a_too_large_produce_gets_a_hint_with_the_setting_to_raise(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await broker.create_topic("small", 1, {"max.message.bytes": "2048"})
        large = {"value": "x" * 20_000}
        for topic, hint in (
            ("small", "tidelog topic alter small --set max.message.bytes=8192"),
            ("single", "--message-bytes-max 8192, then raise max.message.bytes of the topic single"),
        ):
            path = f"/v1/topics/{topic}/records"
            for answer in (
                await client.produce(path, [large]),
                await client.post(path, arrow(value=[large["value"]]), ARROW),
                await client.post(f"{path}?partition=0", batch_of(b"x" * 20_000), BATCH),
            ):
                assert (answer.status, answer.json["code"]) == (413, "TOO_LARGE")
                assert hint in answer.json["hint"]
        body = await client.produce(SINGLE, [large] * 4)
        assert (body.status, "larger --request-bytes-max" in body.json["hint"]) == (413, True)

    settings = GatewaySettings(message_bytes_max=8 * KIB, request_bytes_max=64 * KIB)
    serve(tmp_path, scenario, settings=settings)


# ── acknowledgements ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_acks_say_when_to_answer(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        broker.store.hold()
        none = await client.produce(f"{SINGLE}?acks=none", [{"value": 1}])
        assert (none.status, none.json) == (202, {"results": [{"partition": 0}]})
        batch = await client.post(f"{SINGLE}?acks=0&partition=0", batch_of(b"2"), BATCH)
        assert (batch.status, batch.json) == (202, {"results": [{"partition": 0, "count": 1}]})
        leader = await client.produce(f"{SINGLE}?acks=leader", [{"value": 3}])
        assert (leader.status, leader.json) == (200, {"results": [{"partition": 0, "offset": 2}]})
        waiting = asyncio.ensure_future(client.produce(f"{SINGLE}?acks=all", [{"value": 4}]))
        assert not (await asyncio.wait((waiting,), timeout=0.05))[0]
        broker.store.let_go()
        assert (await waiting).json == {"results": [{"partition": 0, "offset": 3}]}
        assert await values(broker) == [b"1", b"2", b"3", b"4"]

    serve(tmp_path, scenario)


def test_a_commit_that_does_not_come_in_time_is_a_504_that_may_be_durable(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        broker.store.hold()
        answer = await client.produce(f"{SINGLE}?timeout_ms=20", [{"value": 1}])
        reported = answer.json
        assert (answer.status, reported["code"], reported["retryable"], reported["nothing_was_written"]) == (
            504,
            "OUTCOME_UNKNOWN",
            True,
            False,
        )
        broker.store.let_go()
        await until(lambda: broker.budget.bytes_used == 0)
        assert await values(broker) == [b"1"]

    serve(tmp_path, scenario)


def test_errors_during_an_outage_of_the_bucket_name_its_cause(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        broker.bucket_trouble = StoreTrouble("No space left on device", "Free disk space.")
        broker.store.hold()
        unknown = await client.produce(f"{SINGLE}?timeout_ms=20", [{"value": 1}])
        assert (unknown.status, unknown.json["code"]) == (504, "OUTCOME_UNKNOWN")
        assert "(No space left on device)" in unknown.json["detail"]
        assert unknown.json["hint"].startswith("Free disk space. Read back before you retry")
        wrong = await client.produce(SINGLE, [{"partition": 9}])
        assert "bucket" not in wrong.json["detail"]
        broker.log.stop_leading(partition_of(broker.topic_cache.get("orders"), 1))
        half = client.produce(f"{ORDERS}?timeout_ms=20", [{"partition": 1}, {"partition": 1}, {"partition": 0}])
        reported = [result["error"] for result in (await half).json["results"]]
        assert [error["code"] for error in reported] == ["NO_LEADER", "NO_LEADER", "OUTCOME_UNKNOWN"]
        assert all(error["detail"].count("No space left on device") == 1 for error in reported)
        assert "orders/1" in reported[0]["detail"]
        assert not any(broker.topic_cache.get("orders").id in error["detail"] for error in reported)
        broker.bucket_trouble = None
        broker.store.let_go()
        assert (await client.produce(SINGLE, [{"value": 2}])).status == 200

    serve(tmp_path, scenario)


def test_a_request_that_finds_no_room_is_a_429_that_says_when_to_come_back(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        async with broker.log.admit(1000 * KIB, timeout_s=1):
            answer = await client.produce(f"{SINGLE}?timeout_ms=20", [{"value": "x" * 50_000}])
        assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (429, "THROTTLED", "1")
        assert answer.json["nothing_was_written"]
        assert (await client.produce(SINGLE, [{"value": "x" * 50_000}])).status == 200

    serve(tmp_path, scenario, segments=SegmentSettings(linger_ms=0, buffer_bytes_max=1 * MIB, segment_bytes_max=1 * MIB))


def test_without_a_session_a_produce_is_a_503(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        log, broker.present_log = broker.present_log, None
        answer = await client.produce(SINGLE, [{"value": 1}])
        assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "STOPPING", "1")
        broker.present_log = log

    serve(tmp_path, scenario)


def test_records_of_a_failed_partition_have_errors_and_the_others_are_written(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        broker.log.stop_leading(partition_of(broker.topic_cache.get("orders"), 1))
        sent = [{"value": number, "partition": number % 3} for number in range(5)]
        answer = await client.produce(ORDERS, sent)
        reported = answer.json["results"]
        assert answer.status == 200
        assert [result.get("offset") for result in reported] == [0, None, 0, 1, None]
        assert [result["error"]["code"] for result in reported if "error" in result] == ["NO_LEADER", "NO_LEADER"]
        assert reported[1]["error"]["detail"] == "this broker does not lead orders/1"
        answer = await client.produce(ORDERS, [{"partition": 1}, {"partition": 1}])
        assert (answer.status, answer.json["code"]) == (503, "NO_LEADER")

    serve(tmp_path, scenario)


# ── conditions and idempotence ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_append_at_another_end_than_expected_is_a_412_with_the_end(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert (await client.produce(f"{SINGLE}?expected_offset=0", [{"value": 1}, {"value": 2}])).status == 200
        answer = await client.produce(f"{SINGLE}?expected_offset=0", [{"value": 3}])
        assert (answer.status, answer.json["code"], answer.json["end_offset"]) == (412, "CONDITION_FAILED", 2)
        assert answer.json["detail"] == "single/0 ends at offset 2, not at 0"
        assert (await client.produce(f"{SINGLE}?expected_offset=2", [{"value": 3}])).status == 200
        both = client.produce(f"{ORDERS}?expected_offset=0", [{"partition": 0}, {"partition": 1}])
        assert await client.refused(both) == (400, "INVALID_ARGUMENT")
        assert await values(broker) == [b"1", b"2", b"3"]

    serve(tmp_path, scenario)


def test_a_repeat_of_an_idempotent_producer_returns_the_first_offsets(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        producer = (await client.ask("POST", "/v1/producers")).json
        assert producer["producer_epoch"] == 0

        async def produce(base_sequence: int, *sent: int) -> Any:
            query = f"producer_id={producer['producer_id']}&base_sequence={base_sequence}"
            return await client.produce(f"{SINGLE}?{query}", [{"value": value} for value in sent])

        assert (await produce(0, 1, 2)).json == {"results": [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}]}
        assert (await produce(2, 3)).json == {"results": [{"partition": 0, "offset": 2}]}
        again = (await produce(0, 1, 2)).json["results"]
        assert again == [{"partition": 0, "offset": 0, "duplicate": True}, {"partition": 0, "offset": 1, "duplicate": True}]
        gap = await produce(9, 4)
        assert (gap.status, gap.json["code"], gap.json["expected_sequence"]) == (409, "OUT_OF_ORDER_SEQUENCE", 3)
        unknown = client.produce(f"{SINGLE}?producer_id=99&base_sequence=5", [{}])
        assert await client.refused(unknown) == (409, "UNKNOWN_PRODUCER")
        query = f"producer_id={producer['producer_id']}&base_sequence=0&producer_epoch=1"
        assert (await client.produce(f"{SINGLE}?{query}", [{"value": 4}])).status == 200
        fenced = await produce(4, 5)
        assert (fenced.status, fenced.json["code"]) == (409, "PRODUCER_FENCED")
        spread = client.produce(f"{ORDERS}?producer_id=1&base_sequence=0", [{"partition": 0}, {"partition": 1}])
        assert await client.refused(spread) == (400, "INVALID_ARGUMENT")
        assert await values(broker) == [b"1", b"2", b"3", b"4"]

    serve(tmp_path, scenario)


@pytest.mark.parametrize("content_type", ["application/json", NDJSON, ARROW])
def test_a_repeat_with_the_same_idempotency_key_writes_nothing_twice(tmp_path: Path, content_type: str) -> None:
    bodies = {
        "application/json": (b'{"records":[{"value":"a"},{"key":"k","value":"b"}]}', b'{"records":[{"value":"x"},{"value":"y"}]}'),
        NDJSON: (b'{"value":"a"}\n{"key":"k","value":"b"}', b'{"value":"x"}\n{"value":"y"}'),
        ARROW: (arrow(key=[None, "k"], value=["a", "b"]), arrow(value=["x", "y"])),
    }
    body, other = bodies[content_type]

    async def scenario(broker: SmallBroker, client: Client) -> None:
        headers = {"idempotency_key": '"order-7"', "accept": "application/json"}
        first = (await client.post(ORDERS, body, content_type, **headers)).json["results"]
        for _ in range(3):
            again = (await client.post(ORDERS, body, content_type, **headers)).json["results"]
            assert again == [result | {"duplicate": True} for result in first]
        reused = client.post(ORDERS, other, content_type, **headers)
        assert await client.refused(reused) == (422, "IDEMPOTENCY_KEY_REUSED")
        new = (await client.post(ORDERS, other, content_type, idempotency_key="order-8", accept="application/json")).json
        assert not any("duplicate" in result for result in new["results"])
        assert sum([len(await values(broker, "orders", partition)) for partition in range(3)]) == 4

    serve(tmp_path, scenario)


def test_repeats_that_arrive_before_the_commit_wait_for_it(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        broker.store.hold()
        asking = [asyncio.ensure_future(client.produce(SINGLE, [{"value": 1}], idempotency_key="k")) for _ in range(3)]
        assert not (await asyncio.wait(asking, timeout=0.05))[0]
        broker.store.let_go()
        answers = await asyncio.gather(*asking)
        assert [answer.json["results"][0]["offset"] for answer in answers] == [0, 0, 0]
        assert sum("duplicate" in answer.json["results"][0] for answer in answers) == 2
        assert await values(broker) == [b"1"]

    serve(tmp_path, scenario)


def test_an_idempotency_key_is_plain_excludes_a_producer_and_fits_one_batch(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for key in ('""', "x" * 256):
            assert await client.refused(client.produce(SINGLE, [{}], idempotency_key=key)) == (400, "INVALID_ARGUMENT")
        both = client.produce(f"{SINGLE}?producer_id=1&base_sequence=0", [{}], idempotency_key="k")
        assert await client.refused(both) == (400, "INVALID_ARGUMENT")
        long = client.produce(SINGLE, [{"value": "x" * 1000}] * 20, idempotency_key="k")
        assert await client.refused(long) == (413, "TOO_LARGE")
        assert await values(broker) == []

    serve(tmp_path, scenario, settings=GatewaySettings(message_bytes_max=8 * KIB))


def test_a_ready_batch_brings_its_own_idempotence(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        producer_id = (await client.ask("POST", "/v1/producers")).json["producer_id"]
        batch = sequenced_batch(producer_id, 0, b"a")
        assert (await client.post(f"{SINGLE}?partition=0", batch, BATCH)).json["results"][0] == {
            "partition": 0,
            "offset": 0,
            "count": 1,
        }
        again = (await client.post(f"{SINGLE}?partition=0", batch, BATCH)).json["results"][0]
        assert again == {"partition": 0, "offset": 0, "count": 1, "duplicate": True}
        forged = client.post(f"{SINGLE}?partition=0", sequenced_batch(2**62 + 1, 0, b"a"), BATCH)
        assert await client.refused(forged) == (400, "INVALID_RECORD")

    serve(tmp_path, scenario)
