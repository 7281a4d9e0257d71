"""The time since the metadata store has answered."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from metadata.errors import Unavailable
from metadata.model import Revision
from metadata.store.instrumented import InstrumentedMetadataStore
from metadata.store.interface import KeyValue, LeaseId, LeaseLost, MetadataStore
from tests.simulation.virtual_loop import run


class Store:
    """Answers a get; knows no lease."""

    def __init__(self) -> None:
        self.is_away = False

    async def get(self, key: str) -> KeyValue:
        if self.is_away:
            raise Unavailable("no answer")
        return KeyValue(key, b"", Revision(1), Revision(1), 1)

    async def keep_alive(self, lease: LeaseId) -> float:
        raise LeaseLost


def test_any_answer_counts_also_that_a_lease_is_gone_and_no_answer_does_not() -> None:
    async def main() -> None:
        store = Store()
        instrumented = InstrumentedMetadataStore(cast(MetadataStore, store))
        await asyncio.sleep(5.0)
        assert instrumented.idle_s == pytest.approx(5.0)
        await instrumented.get("key")
        assert instrumented.idle_s == 0
        store.is_away = True
        await asyncio.sleep(7.0)
        with pytest.raises(Unavailable):
            await instrumented.get("key")
        assert instrumented.idle_s == pytest.approx(7.0)
        with pytest.raises(LeaseLost):
            await instrumented.keep_alive(LeaseId(1))
        assert instrumented.idle_s == 0

    run(main(), seed=1)
