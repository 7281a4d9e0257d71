"""KafkaJS from npm, the client that most Node.js services use, driven by `kafkajs_probe.js`."""

from __future__ import annotations

import functools
import os
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.kafka_suites.cache import cached, npm_package
from tests.kafka_suites.target import Suite, Target, runner

VERSION = "2.2.4"
SHA256 = "c814f61afbb2b42e314a5e17780475e6a15aa47bbd33b126b81123e69b02a6f6"
PROBE = Path(__file__).with_name("kafkajs_probe.js")
TIMEOUT_S = 90.0
# The others need packages beside KafkaJS.
CODECS = ("none", "gzip")


def modules() -> Path:
    return cached(f"kafkajs-{VERSION}", _unpack) / "node_modules"


def _unpack(folder: Path) -> None:
    npm_package("kafkajs", VERSION, SHA256, folder)
    (folder / "node_modules").mkdir()
    (folder / "package").rename(folder / "node_modules" / "kafkajs")


def probe(target: Target, codec: str) -> None:
    done = subprocess.run(
        ["node", str(PROBE), target.bootstrap, f"kafkajs-{uuid.uuid4().hex}", codec],
        env={**os.environ, "NODE_PATH": str(modules()), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    if done.returncode != 0:
        raise AssertionError((done.stderr or done.stdout)[-300:])


TESTS: dict[str, Callable[[Target], None]] = {codec: functools.partial(probe, codec=codec) for codec in CODECS}
SUITE = Suite(modules, runner(TESTS))
