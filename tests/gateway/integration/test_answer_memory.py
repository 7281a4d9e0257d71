"""What readers that take nothing cost a broker, as a process of its own: the bound of its settings, however many they are."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.proto import log_pb2
from gateway.settings import GatewaySettings
from segments.records.columns import encode_records
from segments.settings import MIB
from tests.kit.forked_tidelog import ForkedBroker
from tests.kit.gateway.stalled_readers import closing, stalled_grpc, stalled_http
from tidelog.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.slow

BOUND_BYTES = GatewaySettings().answer_bytes_max
# What is opened at the moment, what came for the first time, and what the allocator keeps.
OTHER_BYTES = 128 * MIB


@contextmanager
def filled_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """With 9 MiB of records in the one partition of the topic `t`."""
    with ForkedBroker(tmp_path) as broker:
        broker.start()
        post(broker, "/v1/topics", json.dumps({"name": "t", "partition_count": 1}).encode(), "application/json")
        batch = encode_records([(b"key", b"x" * 1000, (), 0)] * 1000)
        for _ in range(9):
            post(broker, "/v1/topics/t/records?partition=0", batch, "application/vnd.tidelog.record-batch")
        yield broker


def post(broker: BrokerProcess, path: str, body: bytes, content_type: str) -> None:
    request = urllib.request.Request(broker.http_url + path, body, {"content-type": content_type})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status in {200, 201}


def resident_bytes(broker: BrokerProcess, field: str) -> int:
    """VmRSS: now, VmHWM: the most so far."""
    status = Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii")
    return int(status.split(f"{field}:")[1].split()[0]) << 10


@pytest.mark.parametrize(
    "accept", ["application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream", "text/event-stream"]
)
def test_two_hundred_http_readers_that_take_nothing_hold_no_more_than_the_room_for_answers(tmp_path: Path, accept: str) -> None:
    with filled_broker(tmp_path) as broker:
        before = resident_bytes(broker, "VmRSS")
        path = "/v1/topics/t/partitions/0/records?max_bytes=8388608"
        with closing([stalled_http(broker.http_address, path, accept=accept) for _ in range(200)]) as readers:
            answered = Counter(reader.recv(12) for reader in readers)
            assert set(answered) <= {b"HTTP/1.1 200", b"HTTP/1.1 429"}
            assert answered[b"HTTP/1.1 200"] >= BOUND_BYTES // (16 * MIB)
            grown = resident_bytes(broker, "VmHWM") - before
        assert grown <= BOUND_BYTES + OTHER_BYTES, f"{grown / MIB:.0f} MiB, {answered}"


@pytest.mark.parametrize("form", [log_pb2.FETCH_FORMAT_BATCHES, log_pb2.FETCH_FORMAT_RECORDS])
def test_two_hundred_grpc_readers_that_take_nothing_hold_no_more_than_the_room_for_answers(
    tmp_path: Path, form: log_pb2.FetchFormat
) -> None:
    with filled_broker(tmp_path) as broker:
        before = resident_bytes(broker, "VmRSS")
        request = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t")], max_bytes=8 * MIB, format=form)
        with closing([stalled_grpc(broker.grpc_address, request) for _ in range(200)]) as readers:
            for reader in readers:
                received = b""
                while b"application/grpc" not in received:  # the head of an answer, or of a refusal
                    received += reader.recv(4096)
            grown = resident_bytes(broker, "VmHWM") - before
        assert grown <= BOUND_BYTES + OTHER_BYTES, f"{grown / MIB:.0f} MiB"
