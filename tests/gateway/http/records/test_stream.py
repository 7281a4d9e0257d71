from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.http.records import stream as records_stream
from gateway.records import response_budget
from gateway.settings import GatewaySettings
from gateway.topics.names import partition_of
from metadata.model import Revision
from segments.records.columns import encode_records
from segments.records.compression import Codec
from segments.settings import KIB, MIB
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker, until
from tests.kit.gateway.stalled_readers import closing, stalled_http

pytestmark = pytest.mark.slow

TOPIC = "/v1/topics/orders/records"
PARTITION = "/v1/topics/orders/partitions/1/records"
EVENTS = {"accept": "text/event-stream"}


class Events:
    """Server-sent events as they come, after the rules of the HTML standard."""

    def __init__(self, lines: AsyncIterable[bytes]) -> None:
        self._lines = lines
        self.last_id = ""
        self.pings = 0
        self.position_events = 0
        """Events without data, which are not dispatched."""

    async def next(self) -> Any:
        """The data of the next event, or None at the end of the stream."""
        fields: dict[str, str] = {}
        async for raw in self._lines:
            line = raw.decode().rstrip("\n")
            if line.startswith(":"):
                self.pings += 1
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                self.last_id = fields.get("id", self.last_id)
                if "data" in fields:
                    return msgspec.json.decode(fields["data"])
                self.position_events += 1
                fields = {}
        return None

    async def take(self, count: int) -> list[Any]:
        return [await self.next() for _ in range(count)]


@asynccontextmanager
async def events(client: Client, path: str, **headers: str) -> AsyncIterator[Events]:
    async with client.session.get(path, headers=EVENTS | headers) as response:
        assert response.status == 200, await response.read()
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["cache-control"] == "no-store"
        yield Events(response.content)


async def produce(client: Client, *values: int, partition: int = 1) -> None:
    answer = await client.produce(TOPIC, [{"value": value, "partition": partition} for value in values])
    assert answer.status == 200


def topic_id(broker: SmallBroker) -> str:
    return broker.topic_cache.get("orders").id


async def id_at_the_end(client: Client, path: str) -> str:
    """Of a stream that begins at the end of the log and is cut off before a record comes."""
    async with client.session.get(f"{path}?offset=latest", headers=EVENTS) as response:
        first = await response.content.readuntil(b"\n\n")
        assert first.startswith(b"id: ")
        return first.decode().removeprefix("id: ").rstrip("\n")


def values(records: list[Any]) -> list[Any]:
    return [record["value"] for record in records]


# ── one partition ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_events_come_as_they_are_produced(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 0, 1)
        async with events(client, PARTITION) as stream:
            assert values(await stream.take(2)) == [0, 1]
            for number in (2, 3):
                await produce(client, number)
                assert (await stream.next())["value"] == number
                assert stream.last_id == f"{topic_id(broker)}/1:{number + 1}"
            assert stream.position_events == 1

    serve(tmp_path, scenario)


def test_a_stream_resumes_behind_its_last_event(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, *range(6))
        async with events(client, f"{PARTITION}?offset=1") as stream:
            assert values(await stream.take(2)) == [1, 2]
        async with events(client, f"{PARTITION}?offset=1", **{"last-event-id": stream.last_id}) as stream:
            assert values(await stream.take(3)) == [3, 4, 5]
        for wrong in ("x", "17", f"{topic_id(broker)}/0:1", f"{topic_id(broker)}/1:-1", "9" * 30):
            answer = client.get(PARTITION, accept="text/event-stream", last_event_id=wrong)
            assert await client.refused(answer) == (400, "INVALID_ARGUMENT")
        beyond = client.get(PARTITION, accept="text/event-stream", last_event_id=f"{topic_id(broker)}/1:7")
        assert await client.refused(beyond) == (416, "OFFSET_OUT_OF_RANGE")

    serve(tmp_path, scenario)


@pytest.mark.parametrize("path", [PARTITION, TOPIC])
def test_a_stream_from_the_end_that_is_lost_before_its_first_record_resumes_where_it_began(tmp_path: Path, path: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 0)
        last_id = await id_at_the_end(client, path)
        await produce(client, 1, 2)
        async with events(client, f"{path}?offset=latest", **{"last-event-id": last_id}) as stream:
            assert values(await stream.take(2)) == [1, 2]

    serve(tmp_path, scenario)


@pytest.mark.parametrize("path", [PARTITION, TOPIC])
def test_an_event_id_of_a_topic_that_was_created_again_is_refused(tmp_path: Path, path: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 0, 1, 2)
        last_id = await id_at_the_end(client, path)
        await broker.delete_topic("orders")
        again = await broker.create_topic("orders", 3)
        await produce(client, *range(10, 20))
        answer = await client.get(path, accept="text/event-stream", last_event_id=last_id)
        assert (answer.status, answer.json["code"], answer.json["new_topic_id"]) == (404, "UNKNOWN_TOPIC", again.id)

    serve(tmp_path, scenario)


def test_partitions_that_were_added_while_no_stream_was_open_are_read_from_their_beginning(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        last_id = await id_at_the_end(client, TOPIC)
        await broker.alter_topic("orders", partition_count=4)
        await produce(client, 1, 2, partition=3)
        async with events(client, f"{TOPIC}?offset=latest", **{"last-event-id": last_id}) as stream:
            assert values(await stream.take(2)) == [1, 2]

    serve(tmp_path, scenario)


def test_a_stream_that_resumes_at_a_broker_that_is_behind_waits_until_that_has_heard_of_the_topic(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        before, get = broker.topic_cache.get("orders"), broker.topic_cache.get
        await broker.alter_topic("orders", partition_count=4)
        await produce(client, 1, partition=3)
        last_id = f"{before.id}/0:0,1:0,2:0,3:0"
        waited: list[str] = []

        async def heard(revision: Revision, timeout_s: float | None) -> bool:
            waited.append("yes")
            patched.setattr(broker.topic_cache, "get", get)
            return True

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(broker.topic_cache, "get", lambda name: before)
            patched.setattr(broker.topic_cache, "wait_for", heard)
            async with events(client, TOPIC, **{"last-event-id": last_id}) as stream:
                assert values(await stream.take(1)) == [1]
        assert waited == ["yes"]

    serve(tmp_path, scenario)


def test_a_stream_ends_after_so_many_records_or_so_much_silence(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, *range(6))
        async with events(client, f"{PARTITION}?max_records=3") as stream:
            assert values(await stream.take(3)) == [0, 1, 2]
            assert await stream.next() is None
        async with events(client, f"{PARTITION}?wait_ms=30&max_bytes=1") as stream:
            assert values(await stream.take(6)) == list(range(6))
            assert await stream.next() is None
        async with events(client, f"{PARTITION}?offset=latest&wait_ms=0") as stream:
            assert await stream.next() is None

    serve(tmp_path, scenario)


def test_a_silent_stream_is_pinged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_stream, "PING_MS", 10)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with events(client, f"{PARTITION}?wait_ms=60000") as stream:
            waiting = asyncio.ensure_future(stream.next())
            await until(lambda: stream.pings >= 3)
            assert loop.time() - began_s >= 0.02, "not more often than each 10 ms"
            waiting.cancel()

    serve(tmp_path, scenario)


def test_a_stop_ends_streams_cleanly(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 0)
        async with events(client, PARTITION) as stream:
            await stream.next()
            stopping = asyncio.ensure_future(broker.http.stop(600))
            assert await stream.next() is None
        async with asyncio.timeout(60):
            await stopping

    serve(tmp_path, scenario)


def test_a_reader_that_hangs_up_ends_its_stream(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        async with events(client, PARTITION):
            pass
        async with asyncio.timeout(60):
            await broker.http.stop(600)

    serve(tmp_path, scenario)


def test_a_stream_that_cannot_continue_ends_with_its_error(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        async with (
            events(client, PARTITION) as stream,
            client.session.get(TOPIC, headers={"accept": "application/x-ndjson"}) as lines,
        ):
            await produce(client, 0)
            await stream.next()
            await lines.content.readline()
            broker.log.stop_leading(partition_of(broker.topic_cache.get("orders"), 1))
            reported = await stream.next()
            assert (reported["code"], reported["detail"]) == ("NO_LEADER", "this broker does not lead orders/1")
            assert await stream.next() is None
            assert msgspec.json.decode(await lines.content.readline())["error"]["code"] == "NO_LEADER"
            assert await lines.content.read() == b""

    serve(tmp_path, scenario)


def test_a_value_that_does_not_fit_the_format_ends_the_stream_with_its_offset(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce(TOPIC, [{"value": "no JSON", "partition": 1}])
        async with events(client, f"{PARTITION}?value_format=json") as stream:
            reported = await stream.next()
            assert (reported["code"], reported["offset"]) == ("INVALID_ARGUMENT", 0)
            assert await stream.next() is None

    serve(tmp_path, scenario)


# ── all partitions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lines_of_all_partitions_keep_the_order_within_each(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for number in range(9):
            await produce(client, number, partition=number % 3)
        answer = await client.get(f"{TOPIC}?wait_ms=0")
        assert answer.headers["content-type"] == "application/x-ndjson"
        for partition in range(3):
            assert values([line for line in answer.lines if line["partition"] == partition]) == [
                partition,
                partition + 3,
                partition + 6,
            ]
        assert len((await client.get(f"{TOPIC}?max_records=4")).lines) == 4
        tails = (await client.get(f"{TOPIC}?wait_ms=0&tail=1")).lines
        assert sorted(values(tails)) == [6, 7, 8]
        assert (await client.get(f"{TOPIC}?wait_ms=0&offset=latest")).lines == []

    serve(tmp_path, scenario)


def test_no_partition_starves_the_others(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for _ in range(4):
            await produce(client, *range(100), partition=0)
        await produce(client, 1000, partition=1)
        await produce(client, 2000, partition=2)
        first = (await client.get(f"{TOPIC}?max_bytes=1&max_records=102")).lines
        assert {line["partition"] for line in first} == {0, 1, 2}

    serve(tmp_path, scenario)


def test_all_partitions_resume_where_each_was_left(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for number in range(9):
            await produce(client, number, partition=number % 3)
        async with events(client, TOPIC) as stream:
            first = await stream.take(4)
        async with events(client, TOPIC, **{"last-event-id": stream.last_id}) as stream:
            rest = await stream.take(5)
        assert sorted(values([*first, *rest])) == list(range(9))
        assert stream.last_id == f"{topic_id(broker)}/0:3,1:3,2:3"
        for wrong in ("0:3,1:3,2:3", f"{topic_id(broker)}/1:1", f"{topic_id(broker)}/0:1,"):
            answer = client.get(TOPIC, accept="text/event-stream", last_event_id=wrong)
            assert await client.refused(answer) == (400, "INVALID_ARGUMENT")
        unknown = client.get(TOPIC, accept="text/event-stream", last_event_id=f"{topic_id(broker)}/0:1,1:1,2:1,3:1")
        assert await client.refused(unknown) == (404, "UNKNOWN_PARTITION")

    serve(tmp_path, scenario)


def test_partitions_that_are_added_are_read_too_and_a_deleted_topic_ends_the_stream(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 0)
        async with events(client, TOPIC) as stream:
            assert (await stream.next())["value"] == 0
            await broker.alter_topic("orders", partition_count=4)
            await produce(client, 1, partition=3)
            await produce(client, 2, partition=0)
            assert sorted(values(await stream.take(2))) == [1, 2]
            await broker.delete_topic("orders")
            assert (await stream.next())["code"] in {"UNKNOWN_TOPIC", "NO_LEADER"}
            assert await stream.next() is None

    serve(tmp_path, scenario)


def test_a_partition_that_was_added_and_trimmed_before_the_stream_heard_of_it_is_read_from_what_is_left(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 0)
        async with events(client, TOPIC) as stream:
            assert (await stream.next())["value"] == 0
            topic = await broker.alter_topic("orders", partition_count=4)
            for number in range(3):
                await produce(client, 30 + number, partition=3)
            assert await broker.cluster_log.delete_records(partition_of(topic, 3), 2) == 2
            await produce(client, 1)
            assert sorted(values(await stream.take(2))) == [1, 32]

    serve(tmp_path, scenario)


@pytest.mark.parametrize("accept", ["application/json", "application/vnd.apache.arrow.stream", "text/html"])
def test_a_stream_over_all_partitions_comes_as_lines_or_events_only(tmp_path: Path, accept: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert await client.refused(client.get(TOPIC, accept=accept)) == (406, "NOT_ACCEPTABLE")

    serve(tmp_path, scenario)


def test_an_offset_is_of_one_partition(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert await client.refused(client.get(f"{TOPIC}?offset=5")) == (400, "INVALID_ARGUMENT")
        assert await client.refused(client.get("/v1/topics/nothing/records")) == (404, "UNKNOWN_TOPIC")

    serve(tmp_path, scenario)


def test_readers_that_never_read_do_not_stop_the_others(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        host, port = broker.http_address.split(":")
        stalled = []
        for _ in range(5):
            _, writer = await asyncio.open_connection(host, int(port), limit=1024)
            writer.write(f"GET {PARTITION} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n".encode())
            stalled.append(writer)
        async with events(client, PARTITION) as stream:
            for number in range(30):
                answer = await client.produce(TOPIC, [{"value": "x" * 50_000, "partition": 1}] * 4)
                assert answer.status == 200, number
                assert len(await stream.take(4)) == 4
        for writer in stalled:
            writer.transport.abort()

    serve(tmp_path, scenario)


def test_a_stream_waits_for_room_with_signs_of_life_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_stream, "PING_MS", 10)
    monkeypatch.setattr(response_budget, "ROOM_WAIT_S", 0.01)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        room = broker.http._app._fetch.budget
        await produce(client, *range(3))
        with ExitStack() as others:
            while room.bytes_used < 128 * KIB:
                await others.enter_context(room.reserve()).ask(128 * KIB, timeout_s=0)
            async with events(client, PARTITION) as stream, client.session.get(TOPIC) as lines:
                first = asyncio.ensure_future(stream.next())
                await until(lambda: stream.pings >= 3)
                assert not first.done()
                others.close()
                assert values([await first, await stream.next(), await stream.next()]) == [0, 1, 2]
                reported = [msgspec.json.decode(await lines.content.readline()) for _ in range(3)]
                assert values(reported) == [0, 1, 2]
                await produce(client, 3)
                assert (await stream.next())["value"] == 3
            await until(lambda: room.bytes_used == 0)

    serve(tmp_path, scenario, settings=GatewaySettings(message_bytes_max=64 * KIB, answer_bytes_max=128 * KIB))


def test_idle_streams_hold_no_room_and_stalled_ones_no_more_than_there_is(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        room = broker.http._app._fetch.budget
        async with events(client, PARTITION) as idle:
            assert room.bytes_used_peak == 0
            for _ in range(8):
                assert (await client.produce(TOPIC, [{"value": "x" * 50_000, "partition": 1}] * 18)).status == 200
                assert len(await idle.take(18)) == 18
            await until(lambda: room.bytes_used == 0)
            with closing([stalled_http(broker.http_address, PARTITION, accept="text/event-stream") for _ in range(20)]):
                await until(lambda: room.bytes_used > 2 * MIB)
                assert (await client.produce(TOPIC, [{"value": 7, "partition": 1}])).status == 200
                assert (await idle.next())["value"] == 7, "readers that take nothing block the others"
            await until(lambda: room.bytes_used == 0)
        assert room.bytes_used_peak <= 8 * MIB

    serve(tmp_path, scenario, settings=GatewaySettings(answer_bytes_max=8 * MIB))


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_a_stream_of_what_was_compressed_far_comes_in_parts_each_record_once(tmp_path: Path, accept: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for partition in range(3):
            batch = encode_records([(None, b"%06d" % number * 100, (), 0) for number in range(1000)], codec=Codec.ZSTD)
            await client.post(f"{TOPIC}?partition={partition}", batch, "application/vnd.tidelog.record-batch")
        answer = await client.get(f"{TOPIC}?max_bytes={32 * KIB}&wait_ms=0", accept=accept)
        if accept == "application/x-ndjson":
            reported = answer.lines
        else:
            reported = [msgspec.json.decode(line[6:]) for line in answer.body.splitlines() if line.startswith(b"data: ")]
        for partition in range(3):
            assert [record["offset"] for record in reported if record["partition"] == partition] == list(range(1000))

    serve(tmp_path, scenario, settings=GatewaySettings(message_bytes_max=64 * KIB))
