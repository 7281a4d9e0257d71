"""The session that a broker begins: a number from the metadata, claimed on the bucket, by metadata that are the bucket's still.

    set back? ─▶ next number (metadata) ─▶ claim (segments/session.py) ─▶ were the metadata restored, or set back? ─▶ the session
        └── it can't be had, or told: tried again, as long as somebody wants a session ──┘

Invariant: no session is begun by metadata that others have replaced by a restore, nor by those that give out numbers which others
have had and used: they have forgotten who leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gateway.cluster_identity import check_knows_who_wrote, set_back
from metadata.counters import next_session
from metadata.errors import OutcomeUnknown, Unavailable
from metadata.etcd_layout import EtcdLayout
from metadata.model import SessionId
from metadata.restoration import read_restoration
from metadata.store import MetadataStore
from segments.object_store import ObjectStore
from segments.restorations import check_not_superseded
from segments.session import Session, claim, first_with_segments

PAUSE_S: Final = 0.5
"""Before a step that the metadata store could not do is tried again."""

log = logging.getLogger(__name__)


class SessionClaims:
    def __init__(
        self,
        bucket: ObjectStore,
        metadata: MetadataStore,
        layout: EtcdLayout,
        *,
        broker_id: str,
        new_writer: Callable[[], bytes],
        now_ms: Callable[[], int],
    ) -> None:
        self._bucket = bucket
        self._metadata = metadata
        self._layout = layout
        self._broker_id = broker_id
        self._new_writer = new_writer
        self._now_ms = now_ms

    async def next(self) -> Session:
        """However long it takes. Raises Rejected, which ends the broker, where its metadata are not the bucket's any more."""
        taken: list[SessionId] = []
        session = await claim(
            self._bucket,
            next_number=lambda: self._next_number(taken),
            writer=self._new_writer(),
            broker_id=self._broker_id,
            now_ms=self._now_ms,
        )
        await self._check_not_superseded()
        for passed_over in taken[:-1]:
            await self._check_never_wrote(passed_over)
        return session

    async def _next_number(self, taken: list[SessionId]) -> SessionId:
        """Where the metadata were set back, none is taken: that a session that wrote has yet to be given out is how every broker
        finds it out, also the one that is started again in place of this one."""
        while True:
            try:
                await check_knows_who_wrote(self._bucket, self._metadata, self._layout)
                taken.append(await next_session(self._metadata, self._layout))
                return taken[-1]
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("no session number could be taken; trying again: %s", error)
                await asyncio.sleep(PAUSE_S)

    async def _check_not_superseded(self) -> None:
        """After the claim (restorations.py)."""
        while True:
            try:
                return await check_not_superseded(self._bucket, await read_restoration(self._metadata, self._layout))
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("it can't be told whether the metadata were restored meanwhile; trying again: %s", error)
                await asyncio.sleep(PAUSE_S)

    async def _check_never_wrote(self, claimed: SessionId) -> None:
        """A number that another had claimed before the metadata gave it out. Who only claims it, and is stopped by the check above,
        may have it from metadata that were replaced; who writes had it from these, before they were set back."""
        while True:
            try:
                if await first_with_segments(self._bucket, from_session=claimed) == claimed:
                    raise set_back(self._bucket.url, claimed)
                return
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("it can't be told whether session %s was another's; trying again: %s", claimed, error)
                await asyncio.sleep(PAUSE_S)
