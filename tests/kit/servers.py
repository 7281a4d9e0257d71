"""S3 servers for tests, as processes of their own on free ports of the loopback.

moto is always there. Where a `versitygw` is on the PATH, or was built before, it is used too, and TIDELOG_TEST_S3_ENDPOINT may
name a running server (loopback only) whose credentials are in TIDELOG_TEST_S3_ACCESS_KEY and TIDELOG_TEST_S3_SECRET_KEY, both
"test" by default.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from segments.object_store.s3.settings import S3Settings

ROOT = Path(__file__).parents[2]
VERSITY_VERSION = "v1.8.0"
VERSITY_BUILD_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class S3Server:
    name: str
    endpoint_url: str
    access_key: str = "test"
    secret_key: str = "test"

    @property
    def settings(self) -> S3Settings:
        from segments.object_store.s3.settings import (
            S3Settings,  # here and below, so that tests without S3 need not load its client
        )

        return S3Settings(  # patient, as a busy machine needs it
            endpoint_url=self.endpoint_url,
            region="us-east-1",
            s3_connect_timeout_ms=60_000.0,
            s3_read_timeout_ms=60_000.0,
            s3_request_timeout_ms=120_000.0,
        )

    @property
    def environment(self) -> dict[str, str]:
        """What a client's process needs to be let in, and to ask no other for credentials."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def make_bucket(self) -> str:
        """The name of a new, empty bucket."""
        import boto3

        bucket = f"tidelog-{uuid.uuid4().hex}"
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )
        try:
            client.create_bucket(Bucket=bucket)
        finally:
            client.close()
        return bucket


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """An S3 whose conditional PUTs are atomic."""
    command = [sys.executable, "-m", "tests.kit.moto_server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            assert port, f"moto did not start (exit code {process.poll()})"
            yield S3Server("moto", f"http://127.0.0.1:{port}")
        finally:
            process.kill()


@contextmanager
def versity_server(directory: Path) -> Iterator[S3Server]:
    """The S3 gateway of Versity over a directory. Skips the test where there is no such program."""
    program = versity_program()
    if program is None:
        pytest.skip("no versitygw on the PATH, and none was built (github.com/versity/versitygw; `make chaos` builds it)")
    with versity_running(program, directory) as server:
        yield server


@contextmanager
def versity_running(program: str, directory: Path) -> Iterator[S3Server]:
    port = free_port()
    environment = {**os.environ, "ROOT_ACCESS_KEY": "test", "ROOT_SECRET_KEY": "test-secret"}
    command = [program, "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "posix", str(directory)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            await_port(port, process)
            yield S3Server("versitygw", f"http://127.0.0.1:{port}", "test", "test-secret")
        finally:
            process.kill()


@contextmanager
def chosen_s3_server(directory: Path, *, build: bool = True) -> Iterator[S3Server]:
    """The most real of those that can be had: the one that TIDELOG_TEST_S3_ENDPOINT names, versitygw, moto behind one lock.

    Where there is Go and no versitygw, it is built once, into a cache of the user, which takes some minutes; not so with `build`
    False. `directory` is for what the server stores.
    """
    if os.environ.get("TIDELOG_TEST_S3_ENDPOINT"):
        with named_server() as server:
            yield server
    elif (program := versity_program() or (built_versity() if build else None)) is not None:
        stored = directory / "s3"
        stored.mkdir()
        with versity_running(program, stored) as server:
            yield server
    else:
        with moto_server() as server:
            yield server


def _versity_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidelog" / f"versitygw-{VERSITY_VERSION}"


def versity_program() -> str | None:
    """The one on the PATH, or the one that was built before."""
    built = _versity_cache() / "versitygw"
    return shutil.which("versitygw") or (str(built) if built.exists() else None)


def built_versity() -> str | None:
    """Path of the versitygw in the user's cache, built there by the first call; None where that is not possible."""
    cache = _versity_cache()
    program = cache / "versitygw"
    if program.exists():
        return str(program)
    go = shutil.which("go")
    if go is None:
        return None
    module = f"github.com/versity/versitygw/cmd/versitygw@{VERSITY_VERSION}"
    print(f"building {module} into {cache}: some minutes, once", file=sys.stderr)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:  # so that one that was broken off is not taken for whole
        environment = {**os.environ, "GOBIN": scratch, "CGO_ENABLED": "0"}
        try:
            done = subprocess.run([go, "install", module], env=environment, timeout=VERSITY_BUILD_TIMEOUT_S, capture_output=True)
        except subprocess.TimeoutExpired:
            print(f"it was not built within {VERSITY_BUILD_TIMEOUT_S} s; moto is used", file=sys.stderr)
            return None
        if done.returncode != 0:
            print(f"it can't be built; moto is used: {done.stderr.decode(errors='replace')[-500:]}", file=sys.stderr)
            return None
        (Path(scratch) / "versitygw").replace(program)
    return str(program)


@contextmanager
def named_server() -> Iterator[S3Server]:
    """The running server that TIDELOG_TEST_S3_ENDPOINT names. Skips the test where it names none."""
    endpoint_url = os.environ.get("TIDELOG_TEST_S3_ENDPOINT")
    if not endpoint_url:
        pytest.skip("TIDELOG_TEST_S3_ENDPOINT names no S3 server")
    assert urlsplit(endpoint_url).hostname in {"127.0.0.1", "::1", "localhost"}, "tests only talk to the loopback"
    access_key = os.environ.get("TIDELOG_TEST_S3_ACCESS_KEY", "test")
    yield S3Server("named", endpoint_url, access_key, os.environ.get("TIDELOG_TEST_S3_SECRET_KEY", "test"))


def free_port() -> int:
    """A port of the loopback, for programs that can't bind port 0 and tell, or have to come back at the same port.

    On Linux it is kept as long as this process runs: a socket that is bound to it, and does not listen, hinders none that binds it
    by name with SO_REUSEADDR, as servers do; but the kernel gives it to no other, and connections are refused.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port = int(kept.getsockname()[1])
    if sys.platform == "linux":
        kept.detach()
    else:
        kept.close()
    return port


def await_port(port: int, process: subprocess.Popen[bytes], *, timeout_s: float = 60.0) -> None:
    """Returns when something accepts connections on the port; fails when the process has ended instead."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, f"the server ended with exit code {process.returncode}"
            assert time.monotonic() < deadline, f"nothing listens on port {port} after {timeout_s} s"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture
def moto_bucket(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket on moto as a bucket URL, with credentials for it in the environment."""
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{moto.make_bucket()}?endpoint={moto.endpoint_url}&region=us-east-1"
