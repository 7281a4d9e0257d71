"""A bucket that is lost, and a copy of it from the day before from which the cluster is restored: real brokers, real restores."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import tidelog
from metadata.errors import Unavailable
from tests.kit.forked_tidelog import ForkedBroker, run_tidelog

pytestmark = pytest.mark.slow

TOPIC = "orders"
PATIENCE_S = 60.0


def restored(bucket: Path, broker: ForkedBroker) -> dict[str, Any]:
    """Restores the metadata of the broker, which has none yet, from the bucket. Returns what the command has printed."""
    arguments = ["--bucket", bucket.as_uri(), "--data-dir", str(broker.data_dir), "--yes", "-o", "json"]
    ran = run_tidelog(["cluster", "restore", *arguments], timeout_s=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr.decode()
    shown: dict[str, Any] = json.loads(ran.stdout)
    return shown


def post(broker: ForkedBroker, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        broker.http_url + path,
        method="POST",
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


def new_producer_id(broker: ForkedBroker) -> int:
    producer_id: int = post(broker, "/v1/producers")["producer_id"]
    return producer_id


def write(broker: ForkedBroker, producer_id: int, value: str) -> int:
    """Sends the first batch of a producer. Returns the offset in the answer."""
    query = f"producer_id={producer_id}&producer_epoch=0&base_sequence=0&partition=0"
    answer = post(broker, f"/v1/topics/{TOPIC}/records?{query}", {"records": [{"value": value}]})
    offset: int = answer["results"][0]["offset"]
    return offset


def test_records_that_arrive_on_a_replica_after_the_restore_end_its_brokers(tmp_path: Path) -> None:
    """Replication went on after the restore, and brought a session that the restored log does not have."""
    bucket, replica = tmp_path / "bucket", tmp_path / "replica"
    bucket.mkdir()
    with (
        ForkedBroker(tmp_path / "lost", flags=["--bucket", bucket.as_uri()]) as lost,
        ForkedBroker(tmp_path / "again", flags=["--bucket", replica.as_uri()]) as again,
    ):
        lost.start()
        with tidelog.connect_sync(lost.http_url) as log:
            log.topics.create(TOPIC, partitions=1)
            log.produce(TOPIC, "replicated in time")
        lost.stop()
        shutil.copytree(bucket, replica)
        lost.start()
        with tidelog.connect_sync(lost.http_url) as log:
            log.produce(TOPIC, "replicated too late")
        lost.stop()
        again.data_dir.mkdir(parents=True)
        restored(replica, again)
        again.start()
        with tidelog.connect_sync(again.http_url) as log:
            assert log.produce(TOPIC, "after the restore").offset == 1
        again.stop()
        [late] = {session.name for session in (bucket / "wal").iterdir()} - {
            session.name for session in (replica / "wal").iterdir()
        }
        shutil.copytree(bucket / "wal" / late, replica / "wal" / late)
        with pytest.raises(Unavailable, match="was not there when the metadata were restored"):
            again.start()
        shutil.rmtree(replica / "wal" / late)
        again.start()
        with tidelog.connect_sync(again.http_url) as log:
            held = [record.text() for record in log.consume(TOPIC, follow=False)]
        assert held == ["replicated in time", "after the restore"]
        again.stop()


def test_a_producer_of_a_lost_bucket_and_a_new_one_of_its_restored_copy_do_not_have_the_same_id(tmp_path: Path) -> None:
    """The copy lacks the session in which the first producer began, so nothing on it says that its number was used."""
    bucket, copy = tmp_path / "bucket", tmp_path / "copy"
    bucket.mkdir()
    with (
        ForkedBroker(tmp_path / "lost", flags=["--bucket", bucket.as_uri()]) as lost,
        ForkedBroker(tmp_path / "again", flags=["--bucket", copy.as_uri()]) as again,
    ):
        lost.start()
        with tidelog.connect_sync(lost.http_url) as log:
            log.topics.create(TOPIC, partitions=1)
            log.produce(TOPIC, "before the copy")
        lost.stop()
        shutil.copytree(bucket, copy)
        lost.start()
        survivor = new_producer_id(lost)
        lost.stop()
        again.data_dir.mkdir(parents=True)
        restored(copy, again)
        again.start()
        assert write(again, survivor, "by the producer that lived on") == 1
        newcomer = new_producer_id(again)
        assert write(again, newcomer, "by the new producer") == 2
        assert newcomer > survivor
        with tidelog.connect_sync(again.http_url) as log:
            held = [record.text() for record in log.consume(TOPIC, follow=False)]
        assert held == ["before the copy", "by the producer that lived on", "by the new producer"]
        again.stop()
