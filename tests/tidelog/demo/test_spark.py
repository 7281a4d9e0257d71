"""The demo's last step, as far as it goes without Spark: the processes that it starts, what they say, and what they leave."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from metadata.errors import InvalidArgument
from tidelog.demo import run as demo_run
from tidelog.demo import spark as demo_spark
from tidelog.demo.report import HourOfDay
from tidelog.demo.run import run_demo
from tidelog.demo.spark import SparkFailed, delays_with_spark

ROW = '{"hour": 5, "flights": 3, "departed": 2, "delay_minutes": 30, "late": 1}'
CHART = Path("delays.png")


def delays_of(reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[HourOfDay]:
    """Of a pipeline that says this on its stdout."""

    async def ran(_command: Sequence[str], _environment: Mapping[str, str]) -> demo_spark._Ran:
        return demo_spark._Ran(0, reported.encode(), "(nothing)")

    monkeypatch.setattr(demo_spark, "_run", ran)
    return asyncio.run(delays_with_spark("file:///b", CHART, scratch=tmp_path / "scratch"))


def test_lines_that_java_writes_to_its_stdout_are_not_taken_for_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = delays_of(f"[0.003s][warning][os] Java has something to say\n{ROW}\n", tmp_path, monkeypatch)
    assert hours == [{"hour": 5, "flights": 3, "departed": 2, "delay_minutes": 30, "late": 1}]


def test_invalid_rows_of_the_pipeline_are_reported_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SparkFailed, match="the pipeline printed invalid rows") as failed:
        delays_of("{}", tmp_path, monkeypatch)
    assert "--no-spark" in failed.value.hint


@pytest.mark.slow
def test_a_pipeline_that_is_ended_on_the_way_leaves_no_process_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_spark, "PIPELINE", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    begun = tmp_path / "begun"
    (tmp_path / "stand_in.py").write_text(
        "import os, pathlib, tempfile, time\n"
        "made = tempfile.mkdtemp(prefix='java-')\n"
        f"part = pathlib.Path({str(begun) + '.part'!r})\n"
        "part.write_text(f'{os.getpid()} {made}')\n"
        f"part.rename({str(begun)!r})\n"
        "time.sleep(600)\n"
    )

    async def main() -> None:
        running = asyncio.ensure_future(delays_with_spark("file:///b", CHART, scratch=tmp_path / "scratch"))
        async with asyncio.timeout(60):
            while not begun.exists():  # noqa: ASYNC110  # another process makes it
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait((running,))

    asyncio.run(main())
    pid, made = begun.read_text().split(" ", 1)
    assert not psutil.pid_exists(int(pid))
    assert not Path(made).exists()
    assert not (tmp_path / "scratch").exists()


@pytest.mark.slow
def test_a_pipeline_beyond_its_timeout_is_ended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_spark, "TIMEOUT_S", 0.0)
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def noted(*command: str, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*command, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    with pytest.raises(SparkFailed, match=r"^pydoc did not end within 0 s, and was ended$") as failed:
        asyncio.run(demo_spark._run([sys.executable, "-m", "pydoc", "-p", "0"], os.environ))
    assert not psutil.pid_exists(started[0].pid)
    assert "`finish`" in failed.value.hint


def test_an_unwritable_chart_is_refused_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "missing", lambda: "")
    for chart in (tmp_path, tmp_path / "nowhere" / "delays.png"):
        with pytest.raises(InvalidArgument, match="the chart can't be written"):
            run_demo(rows=1_000, chart=chart)
