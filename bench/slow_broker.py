"""A broker process whose bucket takes its time: `python -m bench.slow_broker DATA_DIR PUT_S SETTING=VALUE …`

It prints its gRPC address when it serves. From then on each PUT takes PUT_S seconds more.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import uvloop

from gateway.broker.broker import Broker
from gateway.process.broker_process import serve
from gateway.settings import load_settings
from segments.object_store.directory import DirectoryObjectStore
from segments.object_store.interface import Buffer

ROOT = Path(__file__).parents[1]


class SlowBroker(NamedTuple):
    pid: int
    address: str


@contextmanager
def slow_broker(data_dir: Path, *, put_s: float, **settings: object) -> Iterator[SlowBroker]:
    """Runs it, and ends it by its process id."""
    flags = [f"{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "bench.slow_broker", str(data_dir), str(put_s), *flags]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, f"the broker did not start (exit code {process.poll()})"
            yield SlowBroker(process.pid, address)
        finally:
            process.kill()


def main(data_dir: str, put_s: str, *flags: str) -> None:
    given = dict(flag.split("=", 1) for flag in flags)
    settings = load_settings({"data_dir": data_dir, "http": "127.0.0.1:0", "grpc": "127.0.0.1:0", **given}, {})
    serves = False
    create = DirectoryObjectStore.create

    async def slow_create(store: DirectoryObjectStore, key: str, body: Sequence[Buffer], **how: Any) -> None:
        if serves:
            await asyncio.sleep(float(put_s))
        await create(store, key, body, **how)

    def on_ready(broker: Broker) -> None:
        nonlocal serves
        serves = True
        print(broker.grpc_address, flush=True)

    with patch.object(DirectoryObjectStore, "create", slow_create):
        uvloop.run(serve(settings, on_ready))


if __name__ == "__main__":
    main(*sys.argv[1:])
