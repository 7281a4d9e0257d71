"""Translates a bucket's URL into Hadoop's: the path for Spark's own readers, and the options that they need to reach it.

    file:///var/log          file:///var/log
    s3://lake/log            s3a://lake/log
    …?endpoint=…&region=…    fs.s3a.bucket.lake.endpoint, .endpoint.region, .path.style.access, unless the session has them

No credentials are copied: S3A finds them where AWS tools do, or as the session's `fs.s3a.*` say. The settings are options of the
read, and change nothing of the session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from metadata.errors import InvalidArgument, Rejected
from segments.object_store.open import S3Location, parse_store_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopLocation(NamedTuple):
    """A bucket's prefix as a Hadoop URL, with the Hadoop options to reach it."""

    # URL of the prefix, without "/" at its end.
    root: str
    options: Mapping[str, str]


def hadoop_location(url: str, environment: Mapping[str, str], is_set: Callable[[str], bool]) -> HadoopLocation:
    """Translates a bucket's URL. Pure. `is_set`: whether the session sets a key of Hadoop's options. Raises InvalidArgument."""
    location = parse_store_url(url)
    if location is None:
        raise InvalidArgument(f"{url} belongs to one process", hint="Spark reads a directory or a bucket of S3.")
    if isinstance(location, Path):
        return HadoopLocation(location.absolute().as_uri(), {})
    return HadoopLocation(f"s3a://{location.bucket}/{location.prefix}".rstrip("/"), _settings(location, environment, is_set))


def _settings(location: S3Location, environment: Mapping[str, str], is_set: Callable[[str], bool]) -> dict[str, str]:
    settings = location.settings
    endpoint = settings.endpoint_url or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    path_style = settings.path_style if settings.path_style is not None else bool(settings.endpoint_url)
    wanted = {
        "endpoint": endpoint,
        "endpoint.region": settings.region or environment.get("AWS_DEFAULT_REGION"),
        "path.style.access": "true" if path_style else None,
        "connection.ssl.enabled": "false" if endpoint and endpoint.startswith("http://") else None,
    }
    return {
        f"fs.s3a.bucket.{location.bucket}.{name}": value
        for name, value in wanted.items()
        if value and not is_set(f"fs.s3a.bucket.{location.bucket}.{name}") and not is_set(f"fs.s3a.{name}")
    }


def location_for(spark: SparkSession, url: str) -> HadoopLocation:
    """Raises InvalidArgument, and Rejected where this Spark can't read from there, with what to do."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise Rejected(
            "this session runs elsewhere, through Spark Connect, and its files are listed where it runs",
            hint='Use spark.read.format("tidelog"), which reads the same.',
        )
    configuration = spark._jsc.hadoopConfiguration()

    def is_set(key: str) -> bool:
        sources = configuration.getPropertySources(key)
        return sources is not None and "core-default.xml" not in list(sources)

    location = hadoop_location(url, os.environ, is_set)
    if location.root.startswith("s3a:"):
        _check_s3a(jvm, configuration)
    return location


def _check_s3a(jvm: object, configuration: object) -> None:
    from py4j.protocol import Py4JJavaError

    hadoop = jvm.org.apache.hadoop  # type: ignore[attr-defined]  # py4j finds names when they are asked for
    try:
        hadoop.fs.FileSystem.getFileSystemClass("s3a", configuration)
    except Py4JJavaError:
        version = hadoop.util.VersionInfo.getVersion()
        raise Rejected(
            "this Spark can't read s3a:// : it has no hadoop-aws",
            hint=f"Start it with --packages org.apache.hadoop:hadoop-aws:{version}, which is the Hadoop that it has; or use "
            'spark.read.format("tidelog"), which needs none.',
        ) from None
