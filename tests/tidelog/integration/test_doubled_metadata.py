"""Two real brokers on two copies of one data directory, with one bucket: what one of them acknowledges is never lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tidelog
from metadata.errors import TidelogError, Unavailable
from tests.kit.forked_tidelog import ForkedBroker

pytestmark = pytest.mark.slow

TOPIC = "orders"
FOREIGN = "holds appointments that the metadata do not contain"


def test_of_two_brokers_on_copies_of_one_data_directory_one_alone_acknowledges_records(tmp_path: Path) -> None:
    """The older broker has appointed itself and written nothing in its session when the other one starts."""
    (tmp_path / "bucket").mkdir()
    flags = ["--bucket", (tmp_path / "bucket").as_uri()]
    with ForkedBroker(tmp_path / "older", flags=flags) as older, ForkedBroker(tmp_path / "clone", flags=flags) as clone:
        older.start()
        with tidelog.connect_sync(older.http_url) as log:
            log.topics.create(TOPIC, partitions=1)
            log.produce(TOPIC, "before")
        older.stop()
        shutil.copytree(older.data_dir, clone.data_dir)
        older.start()
        with pytest.raises(Unavailable, match=FOREIGN):
            clone.start()
        with tidelog.connect_sync(older.http_url) as log:  # in a new session, where the clone has sealed the one in use
            assert log.produce(TOPIC, "by the older one").offset == 1
        older.stop()
        with pytest.raises(Unavailable):
            clone.start()
        older.start()
        with tidelog.connect_sync(older.http_url) as log:
            held = [record.text() for record in log.consume(TOPIC, follow=False)]
        assert held == ["before", "by the older one"]
        older.stop()


def test_a_directory_that_is_copied_while_its_broker_runs_and_leads_nothing_ends_that_broker_once_the_copy_has_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "bucket").mkdir()
    flags = ["--bucket", (tmp_path / "bucket").as_uri()]
    with ForkedBroker(tmp_path / "older", flags=flags) as older, ForkedBroker(tmp_path / "clone", flags=flags) as clone:
        older.start()
        shutil.copytree(older.data_dir, clone.data_dir)
        clone.start()
        with tidelog.connect_sync(clone.http_url) as log:
            log.topics.create(TOPIC, partitions=1)
            assert log.produce(TOPIC, "by the clone").offset == 0
        with tidelog.connect_sync(older.http_url) as log:
            log.topics.create(TOPIC, partitions=1)
        assert not produced(older, "by the older one")
        with pytest.raises(Unavailable, match="exit code"):
            older.stop()
        assert FOREIGN in older.said()
        clone.stop()


def produced(broker: ForkedBroker, value: str) -> bool:
    """Whether the record was acknowledged. A broker that ends refuses it."""
    try:
        with tidelog.connect_sync(broker.http_url, delivery_timeout_ms=10_000) as log:
            log.produce(TOPIC, value)
    except TidelogError:
        return False
    return True
