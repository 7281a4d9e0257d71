"""A bucket of a real S3 server, the one that the tests use, in a process of its own, on the disk that is measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3

from metadata.errors import Unavailable
from tests.kit.servers import built_versity, versity_program, versity_running

BUCKET = "bench"
REGION = "us-east-1"


@contextmanager
def s3_bucket(directory: Path) -> Iterator[tuple[tuple[str, ...], Path]]:
    """The flags of a broker that is to use it, and where its objects lie as files. Sets the credentials in the environment.

    Unavailable where no server can be had: moto would be what is measured.
    """
    program = versity_program() or built_versity()
    if program is None:
        raise Unavailable("there is no S3 server to measure with: no versitygw on the PATH, and no Go to build it")
    stored = directory / "s3"
    stored.mkdir()
    with versity_running(program, stored) as server:
        os.environ |= {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key, "AWS_REGION": REGION}
        boto3.client("s3", endpoint_url=server.endpoint_url, region_name=REGION).create_bucket(Bucket=BUCKET)
        yield ("--bucket", f"s3://{BUCKET}/catch-up", "--endpoint-url", server.endpoint_url), stored / BUCKET / "catch-up"
