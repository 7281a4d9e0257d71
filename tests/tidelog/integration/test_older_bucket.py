"""A real broker is started on a bucket that is older than its metadata: it refuses, and writes nothing there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tidelog
from metadata.errors import Unavailable
from tests.kit.forked_tidelog import ForkedBroker

pytestmark = pytest.mark.slow

TOPIC = "orders"


def test_a_broker_does_not_start_on_last_nights_copy_of_its_bucket_and_goes_on_with_the_bucket_itself(tmp_path: Path) -> None:
    bucket, copy, newer = (tmp_path / name for name in ("bucket", "copy", "newer"))
    bucket.mkdir()
    with ForkedBroker(tmp_path / "broker", flags=["--bucket", bucket.as_uri()]) as broker:
        for value in ("before the copy", "behind it"):
            broker.start()
            with tidelog.connect_sync(broker.http_url) as log:
                if not copy.exists():
                    log.topics.create(TOPIC, partitions=1)
                log.produce(TOPIC, value)
            broker.stop()
            if not copy.exists():
                shutil.copytree(bucket, copy)
        bucket.rename(newer)
        shutil.copytree(copy, bucket)
        with pytest.raises(Unavailable, match="is older than the metadata of cluster"):
            broker.start()
        assert names(bucket) == names(copy)
        shutil.rmtree(bucket)
        newer.rename(bucket)
        broker.start()
        with tidelog.connect_sync(broker.http_url) as log:
            assert [record.text() for record in log.consume(TOPIC, follow=False)] == ["before the copy", "behind it"]
        broker.stop()


def names(bucket: Path) -> list[str]:
    return sorted(str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file())
