"""A real cluster for chaos: `tidelog serve` processes, an etcd and an S3 server, all on the loopback.

    broker ──link──▶ etcd          each broker has a link of its own to each (tests/kit/tcp_proxy.py), to be cut off alone
       └─────link──▶ S3

A broker that ends by itself is written into the history and started again, as a supervisor would. Every process is known by its
handle and is gone when the block is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import aiohttp

from tests.chaos.history import Ended, History, Unexpected
from tests.kit.etcd_server import EtcdMember, running_etcd
from tests.kit.servers import ROOT, S3Server, free_port
from tests.kit.tcp_proxy import TcpProxy, tcp_proxy

BROKERS = ("b1", "b2", "b3")
SESSION_TIMEOUT_S = 3.0
START_TIMEOUT_S = 60.0
# A broker that was asked to end must have ended after this.
DRAIN_TIMEOUT_S = 60.0
ORDER_TIMEOUT_S = 5.0
POLL_S = 0.1
# What takes minutes and hours elsewhere takes seconds: segments are compacted and deleted while brokers die and readers read.
COMPACTION = {
    "compact": "true",
    "compaction-interval-ms": "1000",
    "compaction-due-age-ms": "3000",
    "delete-grace-ms": "5000",
    "merge-files-min": "4",
}
PREFIX = "chaos"
TIDELOG = ("tidelog.cli.main",)


@dataclass
class Broker:
    broker_id: str
    http_port: int
    grpc_port: int
    etcd: TcpProxy
    s3: TcpProxy
    bucket_url: str
    directory: Path
    environment: Mapping[str, str]
    # What runs `tidelog`: its arguments follow.
    program: Sequence[str]
    # With what Popen takes. Tests that start many brokers give `TidelogProcess`.
    start_process: Callable[..., subprocess.Popen[Any]] = subprocess.Popen
    process: subprocess.Popen[bytes] | None = None
    ends_by_order: bool = field(default=False)
    # HOST:PORT for Kafka clients; empty: the broker does not listen for them.
    kafka_address: str = ""

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def log(self) -> Path:
        return self.directory / f"{self.broker_id}.log"

    @property
    def ready(self) -> bool:
        """Whether the present process has printed its addresses."""
        return self.process is not None and self._reported.stat().st_size > 0

    @property
    def _reported(self) -> Path:
        return self.directory / f"{self.broker_id}.ready"

    def start(self) -> None:
        assert self.process is None
        arguments = {
            "bucket": self.bucket_url,
            "etcd": f"http://127.0.0.1:{self.etcd.port}",
            "broker-id": self.broker_id,
            "http": f"127.0.0.1:{self.http_port}",
            "grpc": f"127.0.0.1:{self.grpc_port}",
            "kafka": self.kafka_address,
            "data-dir": str(self.directory / self.broker_id),
            "session-timeout-ms": f"{SESSION_TIMEOUT_S * 1000:g}",
            "linger-ms": "100",
            "output": "ndjson",
            **COMPACTION,
        }
        flags = [word for name, value in arguments.items() if value for word in (f"--{name}", value)]
        self.ends_by_order = False
        with self._reported.open("wb") as reported, self.log.open("ab") as log:
            self.process = self.start_process(
                [sys.executable, "-m", *self.program, "serve", *flags],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=reported,
                stderr=log,
                env=dict(self.environment),
            )

    def kill(self) -> None:
        """SIGKILL. Twice is no error."""
        self.ends_by_order = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    async def order(self, verb: Literal["drain", "undrain"]) -> bool:
        """What `tidelog cluster drain` and `undrain` ask for, of the broker itself. Whether it was granted."""
        timeout = aiohttp.ClientTimeout(total=ORDER_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
                session.post(f"{self.http_url}/v1/brokers/{self.broker_id}/{verb}") as answer,
            ):
                return answer.status == HTTPStatus.OK
        except (aiohttp.ClientError, TimeoutError):
            return False

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections, and says nothing."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    async def drain(self) -> int | None:
        """SIGTERM: its exit code, None where it had to be killed."""
        process = self.process
        assert process is not None
        self.ends_by_order = True
        process.terminate()
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while process.poll() is None:  # noqa: ASYNC110  # a process sets no event
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self.kill()
            return None
        self.process = None
        return process.returncode


@dataclass
class Cluster:
    brokers: list[Broker]
    etcd: EtcdMember
    s3: S3Server
    bucket: str
    # Of every process that asks the S3 server.
    environment: Mapping[str, str]
    history: History

    @property
    def urls(self) -> dict[str, str]:
        """Addresses of the HTTP listeners, by broker id."""
        return {broker.broker_id: broker.http_url for broker in self.brokers}

    @property
    def kafka_bootstrap(self) -> str:
        """The `bootstrap.servers` of Kafka clients."""
        return ",".join(broker.kafka_address for broker in self.brokers)

    @property
    def bucket_url(self) -> str:
        """With nothing between."""
        return _bucket_url(self.bucket, self.s3.endpoint_url)

    async def supervise(self) -> None:
        """Starts brokers that ended by themselves again, and records it. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            for broker in self.brokers:
                process = broker.process
                if process is not None and not broker.ends_by_order and process.poll() is not None:
                    self.history.add(Ended(self.history.now_s, broker.broker_id, process.returncode, broker.ready))
                    broker.process = None
                    broker.start()

    async def await_ready(self) -> None:
        """Returns when every broker serves."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while not all(broker.ready for broker in self.brokers):  # noqa: ASYNC110  # nor does a file
                await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """Drains one after the other, the last as well."""
        for broker in self.brokers:
            if broker.process is not None and (code := await broker.drain()) != 0:
                what = f"SIGTERM in the end: {'it had to be killed' if code is None else f'exit code {code}'}"
                self.history.add(Unexpected(self.history.now_s, broker.broker_id, what))


@asynccontextmanager
async def running_cluster(
    directory: Path, s3: S3Server, history: History, *, program: Sequence[str] = TIDELOG
) -> AsyncIterator[Cluster]:
    """Three brokers that serve. Their logs and etcd's data lie in `directory`."""
    bucket = await asyncio.to_thread(s3.make_bucket)
    s3_port = int(s3.endpoint_url.rpartition(":")[2])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIDELOG_", "AWS_"))} | s3.environment
    async with AsyncExitStack() as parts:
        etcd = parts.enter_context(running_etcd(directory))
        brokers = []
        for broker_id in BROKERS:
            to_etcd = await parts.enter_async_context(tcp_proxy(etcd.client_port))
            to_s3 = await parts.enter_async_context(tcp_proxy(s3_port))
            url = _bucket_url(bucket, f"http://127.0.0.1:{to_s3.port}")
            broker = Broker(broker_id, free_port(), free_port(), to_etcd, to_s3, url, directory, environment, program)
            broker.kafka_address = f"127.0.0.1:{free_port()}"
            parts.callback(broker.kill)
            brokers.append(broker)
        for broker in brokers:
            broker.start()
        cluster = Cluster(brokers, etcd, s3, bucket, environment, history)
        await cluster.await_ready()
        yield cluster


def _bucket_url(bucket: str, endpoint_url: str) -> str:
    return f"s3://{bucket}/{PREFIX}?endpoint={endpoint_url}&region=us-east-1"
