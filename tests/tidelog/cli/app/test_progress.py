"""A command that waits for its broker says so, and is quiet otherwise."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest

from metadata.errors import Throttled
from tests.simulation.virtual_loop import run
from tidelog.cli.app.progress import byte_progress, offset_progress, show_throttling, show_waiting


def test_a_silent_wait_and_its_end_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"sent": 0, "answered": 0}

    async def session() -> None:
        showing = asyncio.ensure_future(show_waiting(lambda: counts["answered"], lambda: counts["sent"]))
        await asyncio.sleep(61)  # nothing was sent: nothing to report
        counts["sent"] = 3_000
        await asyncio.sleep(53)
        counts["answered"] = 1_000
        await asyncio.sleep(4)
        counts["answered"] = 3_000
        await asyncio.sleep(60)
        showing.cancel()
        await asyncio.wait([showing])

    run(session())
    assert capsys.readouterr().err.splitlines() == [
        "3,000 records wait for an answer; none came for 5 s, and the broker's log may say why",
        "3,000 records wait for an answer; none came for 10 s, and the broker's log may say why",
        "3,000 records wait for an answer; none came for 20 s, and the broker's log may say why",
        "3,000 records wait for an answer; none came for 40 s, and the broker's log may say why",
        "answers come again",
    ]


def test_the_cause_of_a_long_throttle_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    refusals: list[Throttled] = []

    def throttled() -> Throttled | None:
        return refusals[-1] if refusals else None

    async def session() -> None:
        showing = asyncio.ensure_future(show_throttling(throttled))
        waiting = asyncio.ensure_future(show_waiting(lambda: 0, lambda: 7, throttled))
        refusals.append(Throttled("10.0.0.7:9090: billing has used up its bytes_in_per_second of 1000"))
        await asyncio.sleep(1.9)
        assert not capsys.readouterr().err, "short waits are not reported"
        await asyncio.sleep(60)
        waiting.cancel()
        await asyncio.wait([showing, waiting])

    run(session())
    assert capsys.readouterr().err.splitlines() == [
        "throttled: 10.0.0.7:9090: billing has used up its bytes_in_per_second of 1000; this goes on by itself, as fast as it may"
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stderr", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_bar_with_its_records_is_for_terminals(stderr: io.StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("COLUMNS", "120")
    with byte_progress("produce orders", 1_000) as advance, byte_progress("of unknown size", 0) as advance_unknown:
        advance(400, 7)
        advance_unknown(400, 7)
    with offset_progress("replay into orders-eu") as show:
        show(5, 10, 4_321)
    said = stderr.getvalue()
    assert [text in said for text in ("0.4/1.0 kB", "7 records", "50%", "4,321 records")] == [shown] * 4
    assert "unknown" not in said
