"""While records are written, batches of appointments follow each other: a copy of the bucket that lacks them is noticed."""

from __future__ import annotations

import asyncio

from gateway.controller.write_proofs import PROOF_INTERVAL_S
from metadata.model import SessionId
from metadata.store.interface import Put
from segments.bucket.layout import APPOINTMENTS
from tests.kit.gateway.contenders import LAYOUT, Stage, on_stage
from tests.kit.segments.scripted_store import ScriptedStore


def batches(bucket: ScriptedStore) -> int:
    return len(bucket.keys(APPOINTMENTS))


async def elected(stage: Stage) -> None:
    await stage.register(1, 2)
    await stage.stand(1)
    await asyncio.sleep(PROOF_INTERVAL_S)


async def note(stage: Stage, session: int, count: int) -> None:
    await stage.write(Put(LAYOUT.written_by(SessionId(session)), str(count).encode(), stage.leases[session]))


def test_a_session_that_has_written_is_followed_by_one_batch_an_interval_and_an_idle_cluster_by_none() -> None:
    async def scenario(stage: Stage) -> None:
        await elected(stage)
        assert batches(stage.bucket) == 0
        await note(stage, 2, 1)
        await asyncio.sleep(1)
        assert batches(stage.bucket) == 1
        for count in range(2, 12):
            await note(stage, 1, count)
            await note(stage, 2, count)
            await asyncio.sleep(PROOF_INTERVAL_S / 5)
        assert batches(stage.bucket) == 3
        await asyncio.sleep(PROOF_INTERVAL_S)
        before = batches(stage.bucket)
        await asyncio.sleep(100 * PROOF_INTERVAL_S)
        assert batches(stage.bucket) == before

    on_stage(scenario)


def test_a_controller_proves_what_was_noted_before_its_election_and_not_that_a_session_has_ended() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.register(1, 2)
        await note(stage, 2, 1)
        await stage.stand(1)
        await asyncio.sleep(PROOF_INTERVAL_S)
        assert batches(stage.bucket) == 1
        await stage.end(2)
        await asyncio.sleep(10 * PROOF_INTERVAL_S)
        assert batches(stage.bucket) == 1

    on_stage(scenario)


def test_a_batch_that_fails_does_not_end_the_controller_and_is_tried_again_though_no_session_writes() -> None:
    async def scenario(stage: Stage) -> None:
        await elected(stage)
        contender = stage.contenders[1]
        contender.store.lose_requests = 1
        await note(stage, 1, 1)
        await asyncio.sleep(PROOF_INTERVAL_S / 2)
        assert batches(stage.bucket) == 0
        await asyncio.sleep(2 * PROOF_INTERVAL_S)
        assert batches(stage.bucket) == 1
        assert not contender.running.done()

    on_stage(scenario)
