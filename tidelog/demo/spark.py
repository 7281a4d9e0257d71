"""The demo's last step: part of the bucket becomes Parquet, and Spark reads all of it, with every broker stopped.

Both are commands that a user would type, as processes of their own: what uses Spark stands above this package. They are ended with
the demo, however that ends.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from metadata.errors import TidelogError
from tidelog.demo.report import HourOfDay
from tidelog.testing.broker_process import surroundings

PIPELINE: Final = "tidelog.pipelines.hourly_delays"
# The exit code of a pipeline where Spark can't be started (tidelog/pipelines/command.py).
NO_SPARK: Final = 69
# Of the bytes that were written: partitions of a quarter of this, and more, become Parquet, where one has so much.
DUE_PART: Final = 0.3
# For Java that runs half a minute: with its second compiler it takes 49 s of the processor, with this 33 (measured).
COMPILED_QUICKLY: Final = "-XX:TieredStopAtLevel=1"
TIMEOUT_S: Final = 600.0
SAID_SHOWN: Final = 2_000


class SparkFailed(TidelogError):
    """Spark, or the compactor before it, did not do what the demo is there to show."""

    code = "DEMO_SPARK_FAILED"
    default_hint = (
        "What is shown above holds, and the files are kept: the command at `finish` does the rest, with no limit of time. "
        "Or leave Spark out: tidelog demo --no-spark"
    )


class NoSpark(Exception):
    """Says why Spark can't be run here, and what to do."""


def pipeline_command(bucket_url: str, chart: Path, *, python: str = "python") -> str:
    """Returns the command line of the pipeline, as a user types it."""
    return shlex.join([python, "-m", PIPELINE, "--bucket", bucket_url, "--chart", str(chart)])


def missing() -> str:
    """Returns which package is missing, and how to install it; empty if none is. Does not start Spark."""
    for package, extra in (("pyspark", "spark"), ("matplotlib", "demo")):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed: pip install 'tidelog[{extra}]'"
    return ""


async def compact_part(data_dir: Path, *, segment_bytes: int) -> int:
    """Compacts the larger partitions and returns their number. The small ones, and the tail of the log, stay in segments."""
    due_bytes = max(1, int(segment_bytes * DUE_PART))
    command = [sys.executable, "-m", "tidelog.cli.main", "compact", "--data-dir", str(data_dir), "--once", "-o", "json"]
    ran = await _run([*command, "--compaction-due-bytes", str(due_bytes)], surroundings())
    if ran.code != 0:
        raise SparkFailed(f"`tidelog compact` ended with exit code {ran.code}; it said: {ran.said}")
    return int(msgspec.json.decode(ran.out)["manifests"])


async def delays_with_spark(bucket_url: str, chart: Path, *, scratch: Path) -> list[HourOfDay]:
    """Raises NoSpark where Spark can't be started; SparkFailed. `scratch`: a directory to be made, for its files while it runs."""
    command = [sys.executable, "-m", PIPELINE, "--bucket", bucket_url, "--chart", str(chart), "--json"]
    try:
        await asyncio.to_thread(scratch.mkdir, parents=True)
        # TMPDIR as well: if the pipeline is ended early, only we delete its temporary files
        temporary = {"SPARK_LOCAL_DIRS": str(scratch), "TMPDIR": str(scratch)}
        ran = await _run(command, {"SPARK_SUBMIT_OPTS": COMPILED_QUICKLY} | surroundings() | temporary)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if ran.code == NO_SPARK:
        raise NoSpark(" ".join(ran.said.removeprefix("Error: ").split()))
    if ran.code != 0:
        raise SparkFailed(f"the pipeline ended with exit code {ran.code}; it said: {ran.said}")
    rows = [line for line in ran.out.splitlines() if line.startswith(b"{")]  # Java has the same stdout, and may warn there
    try:
        return [msgspec.json.decode(row, type=HourOfDay) for row in rows]
    except msgspec.MsgspecError as error:
        raise SparkFailed(f"the pipeline printed invalid rows: {error}") from error


class _Ran(NamedTuple):
    code: int
    out: bytes
    said: str


async def _run(command: Sequence[str], environment: Mapping[str, str]) -> _Ran:
    """`command`: python -m MODULE and its arguments. Ends the process, and those that it started, when the caller is cancelled."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, said = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except TimeoutError:
        raise SparkFailed(f"{command[2]} did not end within {TIMEOUT_S:.0f} s, and was ended") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode is not None
    return _Ran(process.returncode, out, said.decode(errors="replace").strip()[-SAID_SHOWN:] or "(nothing)")
