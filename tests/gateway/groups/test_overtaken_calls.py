"""A call to a former coordinator ends, and news of coordinators that arrive meanwhile do not break it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.groups.router import GroupRouter


@pytest.mark.parametrize("present", ["broker-a", "broker-b"])
def test_news_of_coordinators_while_a_call_ends_is_no_error(present: str) -> None:
    async def scenario() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as end:
                forwarded = SimpleNamespace(end=end, group="readers", broker_id="broker-a")
                coordinators = SimpleNamespace(id_of=lambda group: present)
                router: Any = SimpleNamespace(_forwarded={"one": forwarded}.values(), _coordinators=coordinators)
                end.reschedule(asyncio.get_running_loop().time())
                try:
                    await asyncio.sleep(60)
                finally:
                    GroupRouter._cancel_outdated_calls(router)
        assert end.expired()

    asyncio.run(scenario())
