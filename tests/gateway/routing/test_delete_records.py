"""Records before an offset are deleted at either listener of any broker, once; what is refused has changed nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.status_pb2 import Status

from gateway.proto import log_pb2
from gateway.proto.status import from_status
from gateway.routing.peer_channels import FORWARDED_BY
from metadata.errors import NotLeader, OutOfRange, UnknownPartition
from metadata.model import TopicPartition
from segments.bucket.layout import manifests_prefix
from tests.gateway.cluster.test_session_manager import partition_of
from tests.gateway.routing.test_cluster_log import channel_to, client_of, made
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker
from tests.kit.gateway.stubs import log_stub

pytestmark = pytest.mark.slow

PATH = "/v1/topics/orders/partitions/0/delete-records"


async def versions(broker: SmallBroker) -> int:
    topic = broker.topic_cache.get("orders")
    page = await broker.store.list(manifests_prefix("orders", TopicPartition(topic.id, partition_of(topic, 0).partition)))
    return len(page.objects)


def test_the_log_start_rises_to_where_it_is_asked_and_never_falls(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce("/v1/topics/orders/records?partition=0", [{"value": number} for number in range(5)])

        async def deleted(before_offset: int, query: str = "") -> Any:
            return (await client.ask("POST", PATH + query, json={"before_offset": before_offset})).json["log_start_offset"]

        assert (await deleted(2, "?validate_only=true"), await versions(broker)) == (2, 0), "nothing was written"
        assert (await deleted(2), await versions(broker)) == (2, 1)
        assert (await deleted(1), await deleted(2), await versions(broker)) == (2, 2, 1), "nothing was left to do"
        too_far = client.ask("POST", PATH, json={"before_offset": 6})
        assert await client.refused(too_far) == (416, "OFFSET_OUT_OF_RANGE")
        assert await versions(broker) == 1
        assert (await client.get("/v1/topics/orders/partitions/0")).json["log_start_offset"] == 2
        refused = client.get("/v1/topics/orders/partitions/0/records?offset=1")
        assert await client.refused(refused) == (416, "OFFSET_OUT_OF_RANGE")
        found = (await client.get("/v1/topics/orders/partitions/0/records?offset=2")).json
        assert [record["offset"] for record in found["records"]] == [2, 3, 4]
        assert (await deleted(-1), await versions(broker)) == (5, 2)
        reported = await client.produce("/v1/topics/orders/records?partition=0", [{"value": 5}])
        assert reported.json["results"] == [{"partition": 0, "offset": 5}], "offsets go on"

    serve(tmp_path, scenario)


@pytest.mark.parametrize("body", [{}, {"before_offset": -2}, {"before_offset": "1"}, {"before_offset": 1, "befor": 2}, [1]])
def test_a_body_that_says_something_else_is_refused(tmp_path: Path, body: object) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert (await client.refused(client.ask("POST", PATH, json=body)))[0] == 400
        assert await versions(broker) == 0

    serve(tmp_path, scenario)


def test_any_broker_takes_the_request_and_sends_it_on_once(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, number, other = await made(cluster)
        path = f"/v1/topics/orders/partitions/{number}"
        async with client_of(other) as client, channel_to(other) as channel:
            await client.produce(f"/v1/topics/orders/records?partition={number}", [{"value": at} for at in range(5)])
            assert (await client.ask("POST", f"{path}/delete-records", json={"before_offset": 2})).json == {"log_start_offset": 2}
            deleting = log_pb2.DeleteRecordsRequest(topic="orders", partition=number, before_offset=-1)
            stub = log_stub(channel)
            assert (await stub.DeleteRecords(deleting)).log_start_offset == 5
            assert (await client.get(path)).json["log_start_offset"] == 5
            for wrong, error in (
                (log_pb2.DeleteRecordsRequest(topic="orders", partition=number, before_offset=6), OutOfRange),
                (log_pb2.DeleteRecordsRequest(topic="orders", partition=99, before_offset=0), UnknownPartition),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.DeleteRecords(wrong)
                assert isinstance(reported(refused.value), error)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.DeleteRecords(deleting, metadata=((FORWARDED_BY, "another"),))
            assert isinstance(reported(refused.value), NotLeader)
        assert cluster.leader(partition_of(topic, number)) is not other

    with_cluster(tmp_path, scenario)


def reported(error: grpc.aio.AioRpcError) -> Exception:
    details = dict(error.trailing_metadata() or ())
    return from_status(Status.FromString(details["grpc-status-details-bin"]))
