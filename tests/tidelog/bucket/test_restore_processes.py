"""`tidelog cluster restore` as it is run when etcd is lost: real brokers, real etcds, the bucket on a real S3 server."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pytest

from segments.object_store.interface import list_all
from segments.object_store.open import open_store
from tests.chaos.cluster import TIDELOG, Broker
from tests.kit.etcd_server import EtcdMember, running_etcd
from tests.kit.forked_tidelog import TidelogProcess, run_tidelog
from tests.kit.servers import S3Server, chosen_s3_server, free_port
from tests.kit.tcp_proxy import TcpProxy
from tests.kit.tidelog.dying_restore import restore_that_dies

pytestmark = pytest.mark.slow

PARTITIONS = 3
PATIENCE_S = 120.0
GROUP = "/tidelog/groups/billing"
NUMBERS = ("/tidelog/restoration", "/tidelog/appointments")
# Before or after which of the restore's writes it kills itself, counted from 1.
Death = tuple[Literal["before", "after"], int]


@dataclass
class ClusterBucket:
    """An S3 bucket, and what runs a broker or a restore on it."""

    s3: S3Server
    bucket_url: str
    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TIDELOG_", "AWS_"))}
        return inherited | self.s3.environment

    @contextmanager
    def broker(self, etcd: EtcdMember, broker_id: str = "b1") -> Iterator[Broker]:
        """Started; killed at the end of the block."""
        to_etcd, to_s3 = TcpProxy(0), TcpProxy(0)
        to_etcd.port = etcd.client_port  # with nothing between
        ports = free_port(), free_port()
        environment = self.environment
        broker = Broker(broker_id, *ports, to_etcd, to_s3, self.bucket_url, self.directory, environment, TIDELOG, TidelogProcess)
        broker.start()
        try:
            yield broker
        finally:
            broker.kill()

    def restore(self, etcd: EtcdMember, *, dies: Death | None = None) -> subprocess.CompletedProcess[str]:
        arguments = ["--bucket", self.bucket_url, "--etcd", etcd.url, "--yes", "-o", "json"]
        if dies is not None:
            return restore_that_dies(*dies, arguments, self.environment, self.directory, timeout_s=PATIENCE_S)
        ran = run_tidelog(["cluster", "restore", *arguments], env=self.environment, timeout_s=PATIENCE_S)
        return subprocess.CompletedProcess(ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode())


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[ClusterBucket]:
    with chosen_s3_server(tmp_path, build=False) as s3:
        url = f"s3://{s3.make_bucket()}/restored?endpoint={s3.endpoint_url}&region=us-east-1"
        yield ClusterBucket(s3, url, tmp_path)


@contextmanager
def etcd_in(directory: Path) -> Iterator[EtcdMember]:
    directory.mkdir()
    with running_etcd(directory) as member:
        yield member


def ask(broker: Broker, verb: str, path: str, body: Any = None) -> Any:
    """The answer, as soon as there is one that is no "try again"."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        request = urllib.request.Request(
            broker.http_url + path,
            method=verb,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            reported = json.loads(error.read())
            assert reported["retryable"], reported
        except OSError:
            assert broker.process is not None
            assert broker.process.poll() is None, broker.log.read_text()[-2000:]
        assert time.monotonic() < deadline_s, f"{verb} {path} has no answer"
        time.sleep(0.05)


class Written:
    """Records of one idempotent producer, and the answers that it received."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.records: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}

    def write(self, broker: Broker, rounds: int) -> None:
        for _ in range(rounds):
            for partition, written in self.records.items():
                value = f"{partition}-{len(written)}"
                assert self._send(broker, partition, len(written), value) == len(written)
                written.append(value)

    def repeat_the_last(self, broker: Broker) -> None:
        """Each is recognised, and answered with the offset that it has."""
        for partition, written in self.records.items():
            assert self._send(broker, partition, len(written) - 1, written[-1]) == len(written) - 1

    def _send(self, broker: Broker, partition: int, sequence: int, value: str) -> int:
        query = f"producer_id={self.producer_id}&producer_epoch=0&base_sequence={sequence}&partition={partition}"
        answer = ask(broker, "POST", f"/v1/topics/orders/records?{query}", {"records": [{"value": value}]})
        offset: int = answer["results"][0]["offset"]
        return offset

    def check(self, broker: Broker) -> None:
        """Everything is there, in order, and nothing else."""
        for partition, written in self.records.items():
            path = f"/v1/topics/orders/partitions/{partition}/records?offset=0&value_format=text"
            answer = ask(broker, "GET", path)
            assert [record["value"] for record in answer["records"]] == written
            assert answer["high_watermark"] == len(written)


def epochs(broker: Broker) -> list[int]:
    partitions = ask(broker, "GET", "/v1/topics/orders")["partitions"]
    return [partition["leader_epoch"] for partition in partitions]


def contents(etcd: EtcdMember) -> dict[str, str]:
    """All keys but those of live brokers; there are none after a restore."""
    reported = json.loads(etcd.control("get", "", "--prefix", "--write-out=json"))
    return {base64.b64decode(pair["key"]).decode(): pair["value"] for pair in reported.get("kvs", [])}


def drain(broker: Broker) -> None:
    """SIGTERM: the controller writes a snapshot when it leaves."""
    assert asyncio.run(broker.drain()) == 0


def ends_or_is_refused(broker: Broker, *, within_s: float) -> None:
    """It acknowledges nothing, however often it is asked."""
    deadline_s = time.monotonic() + within_s
    body = json.dumps({"records": [{"value": "late", "partition": 0}]}).encode()
    headers = {"content-type": "application/json"}
    while time.monotonic() < deadline_s and broker.process is not None and broker.process.poll() is None:
        request = urllib.request.Request(f"{broker.http_url}/v1/topics/orders/records", data=body, headers=headers)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=within_s) as answer:
                pytest.fail(f"the old broker has acknowledged: {answer.read()!r}")
        except OSError:
            time.sleep(0.1)


async def await_on_bucket(bucket: ClusterBucket, text: bytes) -> None:
    """Waits until the registration of a topic on the bucket holds this text."""
    with patch.dict(os.environ, bucket.s3.environment):
        store = await open_store(bucket.bucket_url)
        try:
            async with asyncio.timeout(PATIENCE_S):
                found = False
                while not found:
                    keys = [each.key async for each in list_all(store, "topics/") if each.size < 100_000]
                    found = any([text in await store.get(key) for key in keys])
                    await asyncio.sleep(0.1)
        finally:
            await store.close()


def lose_etcd(bucket: ClusterBucket, lost: EtcdMember) -> tuple[Written, list[int]]:
    """A cluster with records, a group, and a setting that was changed after the snapshot; then broker and etcd are killed."""
    with bucket.broker(lost) as broker:
        ask(broker, "POST", "/v1/topics", {"name": "orders", "partition_count": PARTITIONS})
        written = Written(ask(broker, "POST", "/v1/producers")["producer_id"])
        written.write(broker, 2)
        lost.control("put", GROUP, "generation 7")
        drain(broker)
    with bucket.broker(lost) as broker:
        ask(broker, "PATCH", "/v1/topics/orders", {"settings": {"retention.ms": "604800001"}})
        written.write(broker, 3)
        asyncio.run(await_on_bucket(bucket, b"604800001"))  # the controller copies an altered topic within seconds
        before = epochs(broker)
        broker.kill()
    lost.kill()
    return written, before


@pytest.mark.timeout(1800)  # some thirty processes, one after the other
def test_a_restore_that_is_killed_before_or_after_anything_that_it_writes_goes_on_to_the_same_end(
    bucket: ClusterBucket, tmp_path: Path
) -> None:
    with etcd_in(tmp_path / "lost") as lost:
        written, epochs_before = lose_etcd(bucket, lost)
    with etcd_in(tmp_path / "empty") as empty, etcd_in(tmp_path / "other") as other:
        deaths = 0
        for number in count(1):
            before = bucket.restore(empty, dies=("before", number))
            if before.returncode == 0:
                pytest.fail("a restore that wrote nothing says that it is done")
            if before.returncode != -signal.SIGKILL:
                assert "are not empty" in before.stderr, before.stderr  # the one before died after its very last write
                break
            assert bucket.restore(empty, dies=("after", number)).returncode == -signal.SIGKILL
            deaths += 2
        assert deaths >= 6
        restored = contents(empty)
        assert bucket.restore(other).returncode == 0
        others = contents(other)
        for key in NUMBERS:
            assert restored.pop(key) != others.pop(key), "each restore takes the next one"
        assert restored == others
        assert base64.b64decode(contents(empty)[GROUP]).decode() == "generation 7"
        with bucket.broker(other) as broker:  # the one that was restored last
            written.check(broker)
            assert all(after > before for after, before in zip(epochs(broker), epochs_before, strict=True))
            assert ask(broker, "GET", "/v1/topics/orders")["settings"]["retention.ms"] in (604800001, "604800001")
            written.repeat_the_last(broker)
            written.write(broker, 2)
            assert ask(broker, "POST", "/v1/producers")["producer_id"] > written.producer_id
            written.check(broker)


def test_half_a_restore_lets_no_broker_in(bucket: ClusterBucket, tmp_path: Path) -> None:
    with etcd_in(tmp_path / "lost") as lost:
        written, _ = lose_etcd(bucket, lost)
    with etcd_in(tmp_path / "empty") as empty:
        assert bucket.restore(empty, dies=("after", 3)).returncode == -signal.SIGKILL
        with bucket.broker(empty) as broker:
            assert broker.process is not None
            assert broker.process.wait(PATIENCE_S) != 0
            assert "being restored" in broker.log.read_text()
        restored = bucket.restore(empty)
        assert restored.returncode == 0, restored.stderr
        with bucket.broker(empty) as broker:
            written.check(broker)


def test_while_a_broker_runs_on_the_metadata_they_are_not_restored(bucket: ClusterBucket, tmp_path: Path) -> None:
    with etcd_in(tmp_path / "etcd") as etcd, bucket.broker(etcd) as broker:
        ask(broker, "POST", "/v1/topics", {"name": "orders", "partition_count": PARTITIONS})
        written = Written(ask(broker, "POST", "/v1/producers")["producer_id"])
        written.write(broker, 1)
        refused = bucket.restore(etcd)
        assert refused.returncode == 1
        assert "brokers are running on these metadata" in refused.stderr
        written.write(broker, 1)
        written.check(broker)


def test_an_old_broker_that_still_runs_writes_nothing_after_the_restore(bucket: ClusterBucket, tmp_path: Path) -> None:
    """Its etcd was not lost after all: only the one who restored could not reach it."""
    with etcd_in(tmp_path / "first") as first, etcd_in(tmp_path / "second") as second, bucket.broker(first, "old") as old:
        ask(old, "POST", "/v1/topics", {"name": "orders", "partition_count": PARTITIONS})
        written = Written(ask(old, "POST", "/v1/producers")["producer_id"])
        written.write(old, 2)
        assert bucket.restore(second).returncode == 0
        with bucket.broker(second, "new") as new:
            written.check(new)
            ends_or_is_refused(old, within_s=PATIENCE_S / 2)
            assert old.process is not None
            assert old.process.poll() == 1
            assert "were rebuilt from it meanwhile" in old.log.read_text()
            assert "bug in Tidelog" not in old.log.read_text()
            written.write(new, 2)
            written.check(new)
