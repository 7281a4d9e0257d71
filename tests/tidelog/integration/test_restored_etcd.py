"""etcd restored from its own snapshot while an earlier broker runs on the old one: no acknowledged record is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tidelog
from metadata.errors import Unavailable
from tests.kit.etcd_server import WHEEL, EtcdMember, running_etcd
from tests.kit.forked_tidelog import ForkedBroker
from tests.tidelog.integration.test_doubled_metadata import TOPIC, produced

pytestmark = pytest.mark.slow


@contextmanager
def restored(etcd: EtcdMember, directory: Path) -> Iterator[EtcdMember]:
    """Another etcd, with what this one held."""
    directory.mkdir()
    snapshot = directory / "snapshot"
    etcd.control("snapshot", "save", str(snapshot))
    member = EtcdMember(directory)
    member.choose_ports()
    peer_url = f"http://127.0.0.1:{member.peer_port}"
    command = [
        str(WHEEL / "etcdutl"),
        "snapshot",
        "restore",
        str(snapshot),
        f"--name={member.name}",
        f"--data-dir={directory / member.name}",
        f"--initial-cluster={member.name}={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    try:
        member.start()
        yield member
    finally:
        member.kill()


def test_of_two_brokers_on_an_etcd_and_on_its_restored_snapshot_one_alone_acknowledges_records(tmp_path: Path) -> None:
    for name in ("bucket", "etcd"):
        (tmp_path / name).mkdir()

    def broker(name: str, etcd: EtcdMember) -> ForkedBroker:
        bucket = (tmp_path / "bucket").as_uri()
        flags = ["--bucket", bucket, "--etcd", etcd.url, "--broker-id", "b1", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
        return ForkedBroker(tmp_path / name, flags=flags, command="serve")

    with running_etcd(tmp_path / "etcd") as etcd, broker("older", etcd) as older:
        older.start()
        with tidelog.connect_sync(older.http_url) as log:
            log.topics.create(TOPIC, partitions=1)
            log.produce(TOPIC, "before the snapshot")
        with restored(etcd, tmp_path / "restored") as again, broker("newer", again) as newer:
            assert produced(older, "after the snapshot")
            newer.start()
            with tidelog.connect_sync(newer.http_url) as log:
                assert log.produce(TOPIC, "by the newer one").offset == 2
            assert not produced(older, "by the older one")
            with pytest.raises(Unavailable, match="exit code"):
                older.stop()
            assert "has written to file://" in older.said()
            newer.stop()
            newer.start()
            with tidelog.connect_sync(newer.http_url) as log:
                held = [record.text() for record in log.consume(TOPIC, follow=False)]
            assert held == ["before the snapshot", "after the snapshot", "by the newer one"]
            newer.stop()
