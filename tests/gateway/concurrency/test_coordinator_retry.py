from __future__ import annotations

import asyncio

import pytest

from gateway.concurrency.coordinator_retry import COORDINATOR_WAIT_S, retry_coordinator
from metadata.errors import NoCoordinator, NotCoordinator, OutcomeUnknown, Stopping, TidelogError, UnknownMember
from tests.simulation.virtual_loop import run, virtual_loop


class Group:
    """Answers once it has refused so often."""

    def __init__(self, *refusals: TidelogError) -> None:
        self.refusals = list(refusals)
        self.asked_s: list[float] = []

    async def ask(self) -> str:
        self.asked_s.append(virtual_loop().time())
        if self.refusals:
            raise self.refusals.pop(0)
        return "answered"


def test_a_call_is_retried_with_backoff_while_the_group_has_no_coordinator() -> None:
    async def scenario() -> None:
        group = Group(NotCoordinator("moved"), NoCoordinator("none yet"), Stopping("shutting down"))
        assert await retry_coordinator(group.ask) == "answered"
        pauses = [after - before for before, after in zip(group.asked_s, group.asked_s[1:], strict=False)]
        assert pauses == pytest.approx([0.05, 0.1, 0.2])

    run(scenario())


def test_patience_ends() -> None:
    async def scenario() -> None:
        group = Group(*(NoCoordinator("none yet") for _ in range(100)))
        began_s = virtual_loop().time()
        with pytest.raises(NoCoordinator):
            await retry_coordinator(group.ask)
        assert COORDINATOR_WAIT_S - 1 < virtual_loop().time() - began_s <= COORDINATOR_WAIT_S

    run(scenario())


@pytest.mark.parametrize("error", [UnknownMember("gone"), OutcomeUnknown("who knows")])
def test_a_final_error_and_an_unknown_outcome_are_raised_without_a_retry(error: TidelogError) -> None:
    async def scenario() -> None:
        group = Group(error)
        with pytest.raises(type(error)):
            await retry_coordinator(group.ask)
        assert len(group.asked_s) == 1

    run(scenario())


def test_a_caller_that_hangs_up_ends_the_retries() -> None:
    async def scenario() -> None:
        group = Group(*(NoCoordinator("none yet") for _ in range(100)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await retry_coordinator(group.ask)
        asked = len(group.asked_s)
        await asyncio.sleep(10)
        assert len(group.asked_s) == asked

    run(scenario())
