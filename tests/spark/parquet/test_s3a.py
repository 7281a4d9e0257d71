"""Where Hadoop finds a bucket, and with which options: pure, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.errors import InvalidArgument
from spark.parquet.s3a import hadoop_location

NOTHING: dict[str, str] = {}


def nothing_is_set(key: str) -> bool:
    return False


def test_a_directory_is_a_file_url_however_it_is_spelled(tmp_path: Path) -> None:
    for url in (str(tmp_path), tmp_path.as_uri()):
        assert hadoop_location(url, NOTHING, nothing_is_set) == (tmp_path.as_uri(), {})
    assert hadoop_location("/var/my log", NOTHING, nothing_is_set).root == "file:///var/my%20log"


def test_a_bucket_on_aws_needs_no_settings() -> None:
    assert hadoop_location("s3://lake/log/", NOTHING, nothing_is_set) == ("s3a://lake/log", {})
    assert hadoop_location("s3://lake", NOTHING, nothing_is_set).root == "s3a://lake"


def test_options_from_the_url_apply_to_this_bucket_alone() -> None:
    url = "s3://lake/log?endpoint=http://127.0.0.1:9000&region=eu-central-1"
    assert hadoop_location(url, NOTHING, nothing_is_set).options == {
        "fs.s3a.bucket.lake.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.bucket.lake.endpoint.region": "eu-central-1",
        "fs.s3a.bucket.lake.path.style.access": "true",
        "fs.s3a.bucket.lake.connection.ssl.enabled": "false",
    }


@pytest.mark.parametrize("key", ["fs.s3a.endpoint", "fs.s3a.bucket.lake.endpoint"])
def test_a_setting_of_the_session_goes_before_the_url_s(key: str) -> None:
    options = hadoop_location("s3://lake?endpoint=https://store:9000", NOTHING, lambda asked: asked == key).options
    assert options == {"fs.s3a.bucket.lake.path.style.access": "true"}


def test_the_environment_of_aws_tools_counts_where_the_url_says_nothing() -> None:
    environment = {"AWS_ENDPOINT_URL": "https://store", "AWS_DEFAULT_REGION": "eu-west-1", "AWS_SECRET_ACCESS_KEY": "secret"}
    assert hadoop_location("s3://lake", environment, nothing_is_set).options == {
        "fs.s3a.bucket.lake.endpoint": "https://store",
        "fs.s3a.bucket.lake.endpoint.region": "eu-west-1",
    }


def test_memory_can_not_be_read_by_another_process() -> None:
    with pytest.raises(InvalidArgument, match="belongs to one process"):
        hadoop_location("memory://", NOTHING, nothing_is_set)
