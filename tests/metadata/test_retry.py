from __future__ import annotations

import asyncio
import logging

import pytest

from metadata.errors import AlreadyExists, OutcomeUnknown, Throttled, TidelogError, Unavailable
from metadata.retry import LOGGED_AFTER_S, PAUSE_S, PAUSE_S_MAX, RetryPauses, retry, retry_unavailable
from tests.simulation.virtual_loop import run, virtual_loop


class Server:
    """Raises the given errors, one for each call, then answers."""

    def __init__(self, *failures: TidelogError) -> None:
        self.failures = list(failures)
        self.called_s: list[float] = []

    async def call(self) -> str:
        self.called_s.append(virtual_loop().time())
        if self.failures:
            raise self.failures.pop(0)
        return "answered"

    @property
    def pauses(self) -> list[float]:
        return [after - before for before, after in zip(self.called_s, self.called_s[1:], strict=False)]


def away(times: int) -> list[TidelogError]:
    return [Unavailable("away") for _ in range(times)]


def test_each_pause_is_twice_the_one_before_up_to_the_maximum() -> None:
    pauses = RetryPauses(0.1, 0.5)
    assert [pauses.next_s() for _ in range(5)] == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


def test_jitter_makes_a_pause_half_to_one_and_a_half_times_as_long() -> None:
    jitter = iter([0.0, 1.0])
    pauses = RetryPauses(0.1, 10.0, jitter=lambda: next(jitter))
    assert [pauses.next_s(), pauses.next_s()] == pytest.approx([0.05, 0.3])


def test_a_server_that_names_a_time_is_not_called_sooner() -> None:
    pauses = RetryPauses(0.1, 0.5, jitter=lambda: 0.0)
    assert pauses.next_s(Throttled("busy", retry_after_s=7.0)) == 7.0
    assert pauses.next_s() == pytest.approx(0.05), "the named time does not lengthen the next pauses"
    assert pauses.next_s(Throttled("busy", retry_after_s=0.0)) == pytest.approx(0.1), "no call comes without a pause"


def test_a_call_is_repeated_until_it_is_answered() -> None:
    async def scenario() -> None:
        server = Server(Unavailable("away"), OutcomeUnknown("lost"), Unavailable("away"))
        assert await retry_unavailable(server.call) == "answered"
        assert server.pauses == pytest.approx([PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S])

    run(scenario())


def test_another_error_is_raised_at_once() -> None:
    async def scenario() -> None:
        server = Server(AlreadyExists("there"))
        with pytest.raises(AlreadyExists):
            await retry_unavailable(server.call)
        assert len(server.called_s) == 1

    run(scenario())


def test_the_last_error_is_raised_once_the_time_is_over() -> None:
    async def scenario() -> None:
        server = Server(*away(100))
        with pytest.raises(Unavailable):
            await retry_unavailable(server.call, for_s=60.0)
        assert 60.0 - PAUSE_S_MAX < virtual_loop().time() <= 60.0

    run(scenario())


def test_the_time_begins_with_the_first_failure() -> None:
    async def scenario() -> None:
        server = Server(*away(1))

        async def slow() -> str:
            await asyncio.sleep(100)
            return await server.call()

        pauses = RetryPauses(1.0, 1.0)
        assert await retry(slow, on=Unavailable, pauses=pauses, for_s=5.0) == "answered"

    run(scenario())


def test_the_last_error_is_raised_after_so_many_attempts() -> None:
    async def scenario() -> None:
        server = Server(*away(100))
        with pytest.raises(Unavailable):
            await retry_unavailable(server.call, attempts_max=3)
        assert len(server.called_s) == 3

    run(scenario())


def test_an_outage_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        with caplog.at_level(logging.WARNING, "metadata.retry"):
            await retry_unavailable(Server(*away(3)).call)
            assert virtual_loop().time() < LOGGED_AFTER_S
            assert not caplog.records
            await retry_unavailable(Server(*away(12)).call)
            assert len(caplog.records) == 1

    run(scenario())


def test_a_cancelled_caller_ends_the_repeats() -> None:
    async def scenario() -> None:
        server = Server(*away(100))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await retry_unavailable(server.call)
        calls = len(server.called_s)
        await asyncio.sleep(100)
        assert len(server.called_s) == calls

    run(scenario())
