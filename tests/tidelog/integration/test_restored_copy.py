"""A bucket that is lost, and a copy of it from the day before from which the cluster is restored: real brokers, real restores."""

from __future__ import annotations

import json
import re
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
PATIENCE_S = 120.0


def restored(bucket: Path, broker: ForkedBroker, *, exit_code: int = 0) -> dict[str, Any]:
    """Restores the metadata of the broker, which has none yet, from the bucket. Returns what the command has printed."""
    broker.data_dir.mkdir(parents=True, exist_ok=True)
    arguments = ["--bucket", bucket.as_uri(), "--data-dir", str(broker.data_dir), "--yes", "-o", "json"]
    ran = run_tidelog(["cluster", "restore", *arguments], timeout_s=PATIENCE_S)
    assert ran.returncode == exit_code, ran.stderr.decode()
    shown: dict[str, Any] = json.loads(ran.stdout)
    return shown


def damage_in(bucket: Path) -> list[str]:
    """Returns where `tidelog bucket verify --deep` finds damage."""
    ran = run_tidelog(["bucket", "verify", "--bucket", bucket.as_uri(), "--deep", "-o", "json"], timeout_s=PATIENCE_S)
    found = [finding["where"] for finding in json.loads(ran.stdout)["findings"] if finding["severity"] == "damage"]
    assert ran.returncode == (3 if found else 0), ran.stderr.decode()
    return found


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


def test_a_marker_that_has_arrived_on_a_replica_before_the_manifests_holds_the_restore_up_and_can_be_taken_back(
    tmp_path: Path,
) -> None:
    """Without the marker's segments the partition would begin at offset 0 again, beside records that were acknowledged."""
    bucket, replica = tmp_path / "bucket", tmp_path / "replica"
    bucket.mkdir()
    with (
        ForkedBroker(tmp_path / "lost", flags=["--bucket", bucket.as_uri()]) as lost,
        ForkedBroker(tmp_path / "again", flags=["--bucket", replica.as_uri()]) as again,
    ):
        lost.start()
        with tidelog.connect_sync(lost.http_url) as log:
            log.topics.create(TOPIC, partitions=1)
            for number in range(5):
                log.produce(TOPIC, f"r{number}")
        lost.stop()
        compact = ["compact", "--bucket", bucket.as_uri(), "--data-dir", str(lost.data_dir), "--once", "--all"]
        assert run_tidelog(compact, timeout_s=PATIENCE_S).returncode == 0
        shutil.copytree(bucket, replica)
        assert damage_in(replica) == []
        [manifest] = replica.glob(f"topics/{TOPIC}/*/_log/00000/*")
        manifest.unlink()
        [marker] = replica.glob("wal/*/trimmed-*")
        name = marker.relative_to(replica).as_posix()
        assert damage_in(replica) == [name]
        shown = restored(replica, again, exit_code=3)
        assert not shown["restored"]
        [finding] = shown["findings"]
        assert finding["where"] == name
        [earlier] = re.findall(r"rename the marker to (\S+):", finding["what"])
        marker.rename(replica / earlier)
        assert damage_in(replica) == []
        assert restored(replica, again)["findings"] == []
        again.start()
        with tidelog.connect_sync(again.http_url) as log:
            assert log.produce(TOPIC, "r5").offset == 5
        again.stop()
        compact = ["compact", "--bucket", replica.as_uri(), "--data-dir", str(again.data_dir), "--once", "--all"]
        assert run_tidelog(compact, timeout_s=PATIENCE_S).returncode == 0
        assert damage_in(replica) == []
        again.start()
        with tidelog.connect_sync(again.http_url) as log:
            assert [record.text() for record in log.consume(TOPIC, follow=False)] == [f"r{number}" for number in range(6)]
        again.stop()


def test_a_group_that_had_read_records_which_a_replica_lacks_gets_those_that_are_written_instead(tmp_path: Path) -> None:
    """The snapshot with its offset was replicated, and the last records were not."""
    bucket, replica = tmp_path / "bucket", tmp_path / "replica"
    bucket.mkdir()
    with (
        ForkedBroker(tmp_path / "lost", flags=["--bucket", bucket.as_uri()]) as lost,
        ForkedBroker(tmp_path / "again", flags=["--bucket", replica.as_uri()]) as again,
    ):
        lost.start()
        with tidelog.connect_sync(lost.http_url) as log:
            log.topics.create(TOPIC, partitions=1)
            log.produce(TOPIC, "replicated")
        lost.stop()
        sessions = {session.name for session in (bucket / "wal").iterdir()}
        lost.start()
        with tidelog.connect_sync(lost.http_url) as log:
            for number in range(4):
                log.produce(TOPIC, f"not replicated {number}")
        moved = ["group", "seek", "billing", "--topic", TOPIC, "--to", "latest", "--yes", "--url", lost.http_url]
        ran = run_tidelog(moved, timeout_s=PATIENCE_S)
        assert ran.returncode == 0, ran.stderr.decode()
        lost.stop()
        shutil.copytree(bucket, replica)
        [late] = {session.name for session in (replica / "wal").iterdir()} - sessions
        shutil.rmtree(replica / "wal" / late)
        shown = restored(replica, again, exit_code=3)
        assert (shown["restored"], shown["offsets_set_back"]) == (True, 1)
        [finding] = shown["findings"]
        assert finding["where"] == "group billing"
        assert "from 5 to 1" in finding["what"]
        again.start()
        with tidelog.connect_sync(again.http_url) as log:
            assert log.produce(TOPIC, "written instead").offset == 1
        read = ["consume", TOPIC, "--group", "billing", "--count", "1", "-o", "raw", "--url", again.http_url]
        ran = run_tidelog(read, timeout_s=PATIENCE_S)
        assert b"written instead" in ran.stdout, ran.stderr.decode()
        again.stop()


def test_a_partition_whose_log_starts_beyond_the_records_that_a_replica_has_goes_on_at_its_log_start(tmp_path: Path) -> None:
    """DeleteRecords wrote a manifest that was replicated before the records below its log start, and those above were not."""
    bucket, replica = tmp_path / "bucket", tmp_path / "replica"
    bucket.mkdir()
    with (
        ForkedBroker(tmp_path / "lost", flags=["--bucket", bucket.as_uri()]) as lost,
        ForkedBroker(tmp_path / "again", flags=["--bucket", replica.as_uri()]) as again,
    ):
        lost.start()
        with tidelog.connect_sync(lost.http_url) as log:
            log.topics.create(TOPIC, partitions=1)
            for number in range(5):
                log.produce(TOPIC, f"deleted {number}")
        lost.stop()
        sessions = {session.name for session in (bucket / "wal").iterdir()}
        lost.start()
        with tidelog.connect_sync(lost.http_url) as log:
            for number in range(5):
                log.produce(TOPIC, f"not replicated {number}")
        post(lost, f"/v1/topics/{TOPIC}/partitions/0/delete-records", {"before_offset": 8})
        lost.stop()
        shutil.copytree(bucket, replica)
        [late] = {session.name for session in (replica / "wal").iterdir()} - sessions
        shutil.rmtree(replica / "wal" / late)
        assert damage_in(replica) == []
        assert restored(replica, again)["findings"] == []
        for number in range(2):
            again.start()
            with tidelog.connect_sync(again.http_url) as log:
                assert log.produce(TOPIC, f"new {number}").offset == 8 + number
                assert [record.text() for record in log.consume(TOPIC, follow=False)] == [f"new {n}" for n in range(number + 1)]
            again.stop()
            assert damage_in(replica) == []
            compact = ["compact", "--bucket", replica.as_uri(), "--data-dir", str(again.data_dir), "--once", "--all", "-o", "json"]
            ran = run_tidelog(compact, timeout_s=PATIENCE_S)
            reported = json.loads(ran.stdout)
            assert (ran.returncode, reported["pending_bytes"], reported["damaged"]) == (0, 0, 0), ran.stderr.decode()
            assert damage_in(replica) == []
        again.start()
        with tidelog.connect_sync(again.http_url) as log:
            assert [record.text() for record in log.consume(TOPIC, follow=False)] == ["new 0", "new 1"]
        again.stop()
