from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.proto import log_pb2
from tests.gateway.grpc.produce.test_service import reason, request, serve, structured
from tests.kit.gateway.small_broker import SmallBroker
from tests.kit.segments.batches import TIMESTAMP_MS, batch_of

pytestmark = pytest.mark.slow


async def produce(stub: Any, *batches: bytes, partition: int = 0) -> None:
    for batch in batches:
        response = await stub.Produce(request(log_pb2.Append(topic="orders", partition=partition, record_batch=batch)))
        assert not response.results[0].HasField("error")


# ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_offsets_are_listed_by_position_and_by_time(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        await produce(stub, batch_of(b"a", b"b"), batch_of(b"c", timestamps_ms=[TIMESTAMP_MS + 10]))
        queries = [
            log_pb2.OffsetQuery(topic="orders", earliest=True),
            log_pb2.OffsetQuery(topic="orders", latest=True),
            log_pb2.OffsetQuery(topic="orders", timestamp_ms=TIMESTAMP_MS + 1),
            log_pb2.OffsetQuery(topic="orders", timestamp_ms=TIMESTAMP_MS + 2),
            log_pb2.OffsetQuery(topic="orders", timestamp_ms=TIMESTAMP_MS + 11),
            log_pb2.OffsetQuery(topic="orders", max_timestamp=True),
            log_pb2.OffsetQuery(topic="orders"),
            log_pb2.OffsetQuery(topic="orders", partition=3, latest=True),
            log_pb2.OffsetQuery(topic="nothing", latest=True),
        ]
        results = (await stub.ListOffsets(log_pb2.ListOffsetsRequest(queries=queries))).results
        assert [(result.offset, result.timestamp_ms) for result in results] == [
            (0, -1),
            (3, -1),
            (1, TIMESTAMP_MS + 1),
            (2, TIMESTAMP_MS + 10),
            (-1, -1),
            (2, TIMESTAMP_MS + 10),
            (-1, -1),
            (-1, -1),
            (-1, -1),
        ]
        assert {result.leader_epoch for result in results[:6]} == {7}
        assert [reason(result.error) for result in results if result.HasField("error")] == [
            "INVALID_ARGUMENT",
            "UNKNOWN_PARTITION",
            "UNKNOWN_TOPIC",
        ]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ListOffsets(log_pb2.ListOffsetsRequest())
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    serve(tmp_path, scenario)


def test_an_internal_error_is_logged_and_hidden_and_the_next_call_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: SmallBroker, stub: Any) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(broker.producer_ids, "next", lambda: 1 / 0)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.InitProducer(log_pb2.InitProducerRequest())
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert "ZeroDivisionError" in caplog.text
        assert "division" not in (failed.value.details() or "")
        response = await stub.Produce(request(structured(log_pb2.Record(value=b"a"))))
        assert not response.results[0].HasField("error")

    serve(tmp_path, scenario)
