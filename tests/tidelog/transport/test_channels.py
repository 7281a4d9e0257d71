"""Which channels stay open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from metadata.errors import Unavailable
from tests.kit.servers import free_port
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.settings import ClientSettings
from tidelog.transport import channels
from tidelog.transport.channels import Channels

A, B = "127.0.0.1:1", "127.0.0.1:2"


def with_channels(test: Callable[[Channels], Awaitable[None]]) -> None:
    async def run() -> None:
        opened = Channels(ClientSettings())
        async with asyncio.timeout(60):
            await test(opened)
        await opened.close()

    asyncio.run(run())


def test_a_broker_has_one_channel_however_often_it_is_called() -> None:
    async def test(opened: Channels) -> None:
        with opened.held(A) as first, opened.held(A) as second:
            assert first is second
        with opened.held(A) as later:
            assert later is first

    with_channels(test)


def test_the_channel_of_a_broker_that_is_gone_is_closed_once_nothing_is_under_way() -> None:
    async def test(opened: Channels) -> None:
        with opened.held(A), opened.held(B):
            await opened.drop_idle([B])
            assert set(opened._stubs) == {A, B}
        await opened.drop_idle([B])
        assert set(opened._stubs) == {B}

    with_channels(test)


def test_so_is_one_that_nothing_was_asked_of_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(opened: Channels) -> None:
        with opened.held(A), opened.held(B):
            pass
        await opened.drop_idle([A, B])
        assert set(opened._stubs) == {A, B}
        monkeypatch.setattr(channels, "IDLE_S", -1.0)
        with opened.held(B):
            await opened.drop_idle([A, B])
        assert set(opened._stubs) == {B}

    with_channels(test)


@pytest.mark.slow
def test_a_connection_needs_a_listening_broker() -> None:
    async def test(opened: Channels) -> None:
        unreachable = f"127.0.0.1:{free_port()}"
        with pytest.raises(Unavailable, match="can't connect"):
            await opened.until_connected(unreachable, timeout_s=60)
        assert not opened.is_connected(unreachable)
        async with running(SmallBroker()) as broker:
            await opened.until_connected(broker.host_port, timeout_s=60)
            assert opened.is_connected(broker.host_port)

    with_channels(test)
