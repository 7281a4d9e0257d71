"""The broker under test: a real `tidelog dev` in a process of its own, on the disk that is measured, looked at from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from bench.run import Run
from bench.s3_server import s3_bucket
from segments.bucket.layout import parse_wal_key
from tidelog import connect_sync
from tidelog.testing.broker_process import BrokerProcess


class Served:
    def __init__(self, process: BrokerProcess, bucket: Path) -> None:
        """`bucket`: where its objects lie as files, also those of an S3 server that keeps them so."""
        self.http_url = process.http_url
        self.grpc_address = process.grpc_address
        self.kafka_address = process.kafka_address
        self.bucket = bucket
        self._broker = process
        self._process = psutil.Process(process.pid)

    def restart(self, *, flags: Sequence[str] = ()) -> None:
        """At the same addresses, with nothing in memory. `flags` go to it as well."""
        self._broker.stop()
        self._broker.start(flags=flags)
        self._process = psutil.Process(self._broker.pid)

    def create_topic(self, name: str, partitions: int) -> None:
        with connect_sync(self.http_url) as log:
            log.topics.create(name, partitions=partitions)

    def records_in(self, topic: str) -> int:
        with connect_sync(self.http_url) as log:
            return sum(offsets.high_watermark - offsets.log_start_offset for offsets in log.offsets(topic).values())

    def put_count(self) -> int:
        """Objects in the sessions of the log: each is one PUT."""
        keys = (str(path.relative_to(self.bucket)) for path in (self.bucket / "wal").glob("*/*"))
        return sum(parse_wal_key(key) is not None for key in keys)

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def read_bytes(self) -> int:
        """That it has read of files since it runs, from the disk or its cache (gRPC's sockets are not in it)."""
        return int(self._process.io_counters().read_chars)

    def rss_mib(self) -> float:
        return self._process.memory_info().rss / 2**20

    def peak_rss_mib(self) -> float:
        """The most since it was started, as the kernel keeps it: nothing between two readings is missed."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@contextmanager
def broker(
    run: Run, name: str, *, flags: Sequence[str] = (), module: str = "tidelog.cli.main", on_s3: bool = False
) -> Iterator[Served]:
    """Raises what the benchmark met, with what the broker said. `module`: run in place of `tidelog`. `on_s3`: its bucket is one of
    an S3 server, in place of a directory."""
    with ExitStack() as ending:
        directory = ending.enter_context(run.new_directory(name))
        bucket = directory / "data" / "bucket"
        if on_s3:
            named, bucket = ending.enter_context(s3_bucket(directory))
            flags = (*flags, *named)
        process = ending.enter_context(BrokerProcess(directory, flags=flags, module=module))
        process.start()
        try:
            yield Served(process, bucket)
        except Exception as error:
            error.add_note(f"The broker said: {process.said()}")
            raise
        process.stop()
