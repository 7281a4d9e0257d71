"""Every call ends in time, whatever the store below does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from segments.object_store.timeout import TimeoutObjectStore
from tests.kit.segments.scripted_store import SILENCE, Kind, ScriptedStore
from tests.simulation.virtual_loop import run

KEY = "wal/0000000000000007/claim"

CALLS: dict[Kind, tuple[Callable[[TimeoutObjectStore], Awaitable[object]], type[TidelogError]]] = {
    "create": (lambda store: store.create(KEY, [b"x"]), OutcomeUnknown),
    "get": (lambda store: store.get(KEY), Unavailable),
    "tail": (lambda store: store.tail(KEY, 8), Unavailable),
    "list": (lambda store: store.list(KEY), Unavailable),
    "delete": (lambda store: store.delete(KEY), OutcomeUnknown),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_store_that_never_answers_is_given_up(name: Kind) -> None:
    call, late = CALLS[name]
    store = ScriptedStore()
    store.script(name, KEY, SILENCE)

    async def main() -> None:
        with pytest.raises(late, match="no answer within 5 s"):
            await call(TimeoutObjectStore(store, timeout_s=5))

    run(main())


def test_a_call_that_is_answered_in_time_passes_through() -> None:
    async def main() -> None:
        store = TimeoutObjectStore(ScriptedStore(), timeout_s=5)
        await store.create(KEY, [b"ab", b"c"])
        assert await store.get(KEY, start=1) == b"bc"
        assert (await store.tail(KEY, 1)).body == b"c"
        assert [found.key for found in (await store.list("wal/")).objects] == [KEY]
        await store.delete(KEY)
        assert (await store.list("wal/")).objects == ()

    run(main())
