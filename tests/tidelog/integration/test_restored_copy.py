"""A bucket that is lost, and a copy of it from the day before from which the cluster is restored: real brokers, real restores."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidelog
from metadata.errors import Unavailable
from tests.kit.forked_tidelog import ForkedBroker, run_tidelog
from tidelog.blocking.client import BlockingClient

pytestmark = pytest.mark.slow

TOPIC = "orders"
PATIENCE_S = 120.0


class Loss:
    """A broker whose bucket is lost, a replica of the bucket, and a broker whose metadata are restored from the replica."""

    def __init__(self, folder: Path, lost: ForkedBroker, again: ForkedBroker) -> None:
        self.bucket = folder / "bucket"
        self.replica = folder / "replica"
        self.lost = lost
        self.again = again

    def write_first(self, *values: str) -> None:
        """Writes the first records of the topic on the bucket that is to be lost."""
        with running(self.lost) as log:
            log.topics.create(TOPIC, partitions=1)
            write_all(log, *values)

    def replicate(self) -> None:
        shutil.copytree(self.bucket, self.replica)

    def sessions(self, bucket: Path) -> set[str]:
        return {session.name for session in (bucket / "wal").iterdir()}

    def replicate_without(self, sessions: set[str]) -> None:
        """Copies the bucket without the one session that it has beside these."""
        self.replicate()
        [late] = self.sessions(self.bucket) - sessions
        shutil.rmtree(self.replica / "wal" / late)

    def restored(self, *, exit_code: int = 0) -> dict[str, Any]:
        """Restores the metadata, of which there are none yet, from the replica. Returns what the command has printed."""
        self.again.data_dir.mkdir(parents=True, exist_ok=True)
        arguments = ["--bucket", self.replica.as_uri(), "--data-dir", str(self.again.data_dir), "--yes"]
        return printed("cluster", "restore", *arguments, exit_code=exit_code)

    def damage(self) -> list[str]:
        """Returns where `tidelog bucket verify --deep` finds damage on the replica."""
        arguments = ["bucket", "verify", "--bucket", self.replica.as_uri(), "--deep", "-o", "json"]
        ran = run_tidelog(arguments, timeout_s=PATIENCE_S)
        found = [finding["where"] for finding in json.loads(ran.stdout)["findings"] if finding["severity"] == "damage"]
        assert ran.returncode == (3 if found else 0), ran.stderr.decode()
        return found


@pytest.fixture
def loss(tmp_path: Path) -> Iterator[Loss]:
    (tmp_path / "bucket").mkdir()
    with (
        ForkedBroker(tmp_path / "lost", flags=["--bucket", (tmp_path / "bucket").as_uri()]) as lost,
        ForkedBroker(tmp_path / "again", flags=["--bucket", (tmp_path / "replica").as_uri()]) as again,
    ):
        yield Loss(tmp_path, lost, again)


@contextmanager
def running(broker: ForkedBroker) -> Iterator[BlockingClient]:
    """Runs the broker around the body, which gets a client."""
    broker.start()
    with tidelog.connect_sync(broker.http_url) as log:
        yield log
    broker.stop()


def write_all(log: BlockingClient, *values: str) -> None:
    for value in values:
        log.produce(TOPIC, value)


def read_all(log: BlockingClient) -> list[str | None]:
    return [record.text() for record in log.consume(TOPIC, follow=False)]


def printed(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    """Runs the command, and returns what it has printed."""
    ran = run_tidelog([*arguments, "-o", "json"], timeout_s=PATIENCE_S)
    assert ran.returncode == exit_code, ran.stderr.decode()
    shown: dict[str, Any] = json.loads(ran.stdout)
    return shown


def compacted(bucket: Path, broker: ForkedBroker) -> dict[str, Any]:
    """Compacts all records of the bucket, and returns what the command has printed."""
    return printed("compact", "--bucket", bucket.as_uri(), "--data-dir", str(broker.data_dir), "--once", "--all")


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


def test_records_that_arrive_on_a_replica_after_the_restore_end_its_brokers(loss: Loss) -> None:
    """Replication went on after the restore, and brought a session that the restored log does not have."""
    loss.write_first("replicated in time")
    loss.replicate()
    with running(loss.lost) as log:
        log.produce(TOPIC, "replicated too late")
    loss.restored()
    with running(loss.again) as log:
        assert log.produce(TOPIC, "after the restore").offset == 1
    [late] = loss.sessions(loss.bucket) - loss.sessions(loss.replica)
    shutil.copytree(loss.bucket / "wal" / late, loss.replica / "wal" / late)
    with pytest.raises(Unavailable, match="was not there when the metadata were restored"):
        loss.again.start()
    shutil.rmtree(loss.replica / "wal" / late)
    with running(loss.again) as log:
        assert read_all(log) == ["replicated in time", "after the restore"]


def test_a_producer_of_a_lost_bucket_and_a_new_one_of_its_restored_copy_do_not_have_the_same_id(loss: Loss) -> None:
    """The copy lacks the session in which the first producer began, so nothing on it says that its number was used."""
    loss.write_first("before the copy")
    loss.replicate()
    with running(loss.lost):
        survivor = new_producer_id(loss.lost)
    loss.restored()
    with running(loss.again) as log:
        assert write(loss.again, survivor, "by the producer that lived on") == 1
        newcomer = new_producer_id(loss.again)
        assert write(loss.again, newcomer, "by the new producer") == 2
        assert newcomer > survivor
        assert read_all(log) == ["before the copy", "by the producer that lived on", "by the new producer"]


def test_a_marker_that_has_arrived_on_a_replica_before_the_manifests_holds_the_restore_up_and_can_be_taken_back(loss: Loss) -> None:
    """Without the marker's segments the partition would begin at offset 0 again, beside records that were acknowledged."""
    loss.write_first(*(f"r{number}" for number in range(5)))
    compacted(loss.bucket, loss.lost)
    loss.replicate()
    assert loss.damage() == []
    [manifest] = loss.replica.glob(f"topics/{TOPIC}/*/_log/00000/*")
    manifest.unlink()
    [marker] = loss.replica.glob("wal/*/trimmed-*")
    [file] = loss.replica.glob(f"topics/{TOPIC}/*/*/*.parquet")
    name, unnamed = (path.relative_to(loss.replica).as_posix() for path in (marker, file))
    assert loss.damage() == [name, unnamed]
    shown = loss.restored(exit_code=3)
    assert not shown["restored"]
    [finding] = [each for each in shown["findings"] if each["where"] == name]
    [earlier] = re.findall(r"rename the marker to (\S+):", finding["what"])
    marker.rename(loss.replica / earlier)
    assert loss.damage() == []
    assert loss.restored()["findings"] == []
    with running(loss.again) as log:
        assert log.produce(TOPIC, "r5").offset == 5
    compacted(loss.replica, loss.again)
    assert loss.damage() == []
    with running(loss.again) as log:
        assert read_all(log) == [f"r{number}" for number in range(6)]


def test_a_group_that_had_read_records_which_a_replica_lacks_gets_those_that_are_written_instead(loss: Loss) -> None:
    """The snapshot with its offset was replicated, and the last records were not."""
    loss.write_first("replicated")
    sessions = loss.sessions(loss.bucket)
    with running(loss.lost) as log:
        write_all(log, *(f"not replicated {number}" for number in range(4)))
        moved = ["group", "seek", "billing", "--topic", TOPIC, "--to", "latest", "--yes", "--url", loss.lost.http_url]
        ran = run_tidelog(moved, timeout_s=PATIENCE_S)
        assert ran.returncode == 0, ran.stderr.decode()
    loss.replicate_without(sessions)
    shown = loss.restored(exit_code=3)
    assert (shown["restored"], shown["offsets_set_back"]) == (True, 1)
    [finding] = shown["findings"]
    assert finding["where"] == "group billing"
    assert "from 5 to 1" in finding["what"]
    with running(loss.again) as log:
        assert log.produce(TOPIC, "written instead").offset == 1
        read = ["consume", TOPIC, "--group", "billing", "--count", "1", "-o", "raw", "--url", loss.again.http_url]
        ran = run_tidelog(read, timeout_s=PATIENCE_S)
        assert b"written instead" in ran.stdout, ran.stderr.decode()


def test_a_partition_whose_log_starts_beyond_the_records_that_a_replica_has_goes_on_at_its_log_start(loss: Loss) -> None:
    """DeleteRecords wrote a manifest that was replicated before the records below its log start, and those above were not."""
    loss.write_first(*(f"deleted {number}" for number in range(5)))
    sessions = loss.sessions(loss.bucket)
    with running(loss.lost) as log:
        write_all(log, *(f"not replicated {number}" for number in range(5)))
        post(loss.lost, f"/v1/topics/{TOPIC}/partitions/0/delete-records", {"before_offset": 8})
    loss.replicate_without(sessions)
    assert loss.damage() == []
    assert loss.restored()["findings"] == []
    for number in range(2):
        with running(loss.again) as log:
            assert log.produce(TOPIC, f"new {number}").offset == 8 + number
            assert read_all(log) == [f"new {n}" for n in range(number + 1)]
        assert loss.damage() == []
        reported = compacted(loss.replica, loss.again)
        assert (reported["pending_bytes"], reported["damaged"]) == (0, 0)
        assert loss.damage() == []
    with running(loss.again) as log:
        assert read_all(log) == ["new 0", "new 1"]
