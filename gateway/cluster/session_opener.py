"""Opens the session of a broker: takes a number from the metadata, and claims it on the bucket that belongs to them.

  set back? ─▶ take the next number, and note that it begins  (metadata, one transaction)
            ─▶ claim it                                       (segments/wal/session.py)
            ─▶ were the metadata restored? ─▶ seal every session that other metadata began
            ─▶ with etcd:    delete the note                                                          ─▶ the session
               without etcd: seal every earlier session, and delete their notes (earlier_sessions.py)
     └── a step that fails is tried again, until the broker stops ──┘

The same metadata may exist twice: two copies of one data directory, or an etcd that was restored from a snapshot of its own while
earlier brokers still run. Both copies give out the same session numbers, and both appoint leaders for the same partitions. A
session is **foreign** when these metadata did not begin it, which shows in one of three ways:

  its number has yet to be given out here
  its number was given out here, is noted as beginning, and another nonce stands in its claim
  the broker that took its number here met the claim of another

A foreign session is sealed before the own session is used. If it wrote, the broker ends: those records are missing from its
metadata. Each broker claims first and looks for foreign sessions afterwards, so of two brokers with different metadata at least one
sees the other, and one of two sessions is sealed before it has written (tests/simulation/clone_model.py).

A copy that is made during a session knows the number of that session, so there the session is not foreign. Without etcd the
metadata have one broker at a time, which keeps the note of its session until its next session begins. A broker on such a copy finds
the note, and seals that session before it uses its own (tests/simulation/copied_directory_model.py).

Invariants: no session is begun by metadata that a restore has replaced, nor by metadata that give out numbers which other sessions
have used: they no longer know who leads. Numbered batches on the bucket decide which of two copies of an etcd appoints leaders
(gateway/controller/appointment_log.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from gateway.cluster.earlier_sessions import EarlierSessions
from gateway.cluster.identity import check_knows_who_wrote, foreign_claims, next_number, set_back
from metadata.backup.restore_state import read_restoration
from metadata.cluster.id_allocation import next_session
from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from metadata.model import SessionId
from metadata.store.interface import OPERATIONS_MAX, Delete, MetadataStore
from metadata.store.keys import KeyLayout
from segments.bucket.markers import check_not_superseded
from segments.object_store.interface import ObjectStore
from segments.wal.session import Session, claim, first_with_segments, seal, sessions_from

# Pause before a step that the metadata store or the bucket could not do is tried again.
PAUSE_S: Final = 0.5

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class SessionOpener:
    """Opens one session after the other, and seals foreign and earlier sessions before each is used."""

    def __init__(
        self,
        bucket: ObjectStore,
        metadata: MetadataStore,
        layout: KeyLayout,
        *,
        broker_id: str,
        new_writer: Callable[[], bytes],
        now_ms: Callable[[], int],
        earlier: EarlierSessions | None = None,
    ) -> None:
        """`earlier` is given if no other broker can use these metadata, so that every earlier session of theirs has ended."""
        self._bucket = bucket
        self._metadata = metadata
        self._layout = layout
        self._broker_id = broker_id
        self._new_writer = new_writer
        self._now_ms = now_ms
        self._earlier = earlier

    async def next(self) -> Session:
        """Opens the next session, however long it takes. Raises Rejected, which ends the broker, if its metadata no longer belong
        to the bucket."""
        writer = self._new_writer()
        session = await claim(
            self._bucket,
            next_number=lambda: self._next_number(writer),
            writer=writer,
            broker_id=self._broker_id,
            now_ms=self._now_ms,
            pass_over=self._pass_over,
        )
        await self._check_not_superseded()
        begun = await self._end_foreign_sessions()
        if self._earlier is not None:
            begun = [earlier for earlier in begun if earlier != session.id]
            await self._end_earlier(self._earlier, begun, by=session)
        await self._forget(begun)
        return session

    async def _next_number(self, writer: bytes) -> SessionId:
        """Takes a session number, but none if the metadata were set back.

        A session that wrote under a number yet to be given out is how every broker detects that, also a restarted one.
        """

        async def take() -> SessionId:
            await check_knows_who_wrote(self._bucket, self._metadata, self._layout)
            return await next_session(self._metadata, self._layout, writer=writer)

        return await _until_done("no session number could be taken", take)

    async def _check_not_superseded(self) -> None:
        """Raises Fenced if a restore has replaced these metadata. Called after the claim (segments/bucket/markers.py)."""

        async def check() -> None:
            await check_not_superseded(self._bucket, await read_restoration(self._metadata, self._layout))

        await _until_done("it is not known whether the metadata were restored meanwhile", check)

    async def _pass_over(self, claimed: SessionId) -> None:
        """Ends the session of a process that has claimed the number which these metadata gave out to this broker."""
        await self._check_not_superseded()
        await self._end_foreign(claimed)
        await self._forget([claimed])

    async def _end_foreign_sessions(self) -> list[SessionId]:
        """Seals foreign sessions. Called after the claim: a foreign broker that claims later finds this broker's claim.

        Returns the noted sessions that brokers of these metadata have begun. The notes of foreign ones are deleted.
        """
        untaken = await _until_done("sessions are not known", lambda: next_number(self._metadata, self._layout))
        ahead = await _until_done("sessions can't be listed", lambda: sessions_from(self._bucket, untaken))
        # Read after the listing, so that a session which another broker of these metadata has begun meanwhile is below it.
        untaken = await _until_done("sessions are not known", lambda: next_number(self._metadata, self._layout))
        begun, foreign = await _until_done(
            "claims can't be compared", lambda: foreign_claims(self._bucket, self._metadata, self._layout)
        )
        for session in (*foreign, *(session for session in ahead if session >= untaken)):
            await self._end_foreign(session)
        await self._forget(foreign)
        return begun

    async def _end_earlier(self, earlier: EarlierSessions, begun: Sequence[SessionId], *, by: Session) -> None:
        """Seals the earlier sessions, of which one may be in use by a broker on a copy that was made since it began."""
        for session in begun:

            async def end(session: SessionId = session) -> bool:
                return await earlier.end(session, by=by)

            if not await _until_done(f"it is not known what session {session} has written", end):
                await self._check_not_superseded()
                raise set_back(self._bucket.url, session)

    async def _end_foreign(self, session: SessionId) -> None:
        """Seals a session of other metadata, so that its broker finds the seal at its first write. Rejected where it wrote."""
        await self._check_never_wrote(session)
        log.warning("foreign session found session=%s: a broker of other metadata claimed it; sealing it", session)
        await seal(self._bucket, session, by=None, now_ms=self._now_ms)
        await self._check_never_wrote(session)

    async def _check_never_wrote(self, session: SessionId) -> None:
        """Raises Rejected if the session has written.

        A broker that only claims a number, and is stopped by `_check_not_superseded`, may have it from metadata that were replaced.
        A broker
        that writes had it from a copy of these metadata, or from these before they were set back.
        """

        async def check() -> None:
            if await first_with_segments(self._bucket, from_session=session) == session:
                raise set_back(self._bucket.url, session)

        await _until_done(f"it is not known whether session {session} has written", check)

    async def _forget(self, begun: Sequence[SessionId]) -> None:
        """Deletes the notes of sessions that are begun or sealed. A remaining note costs one read at each later opening."""
        deletes = [Delete(self._layout.beginning_session(session)) for session in begun]
        try:
            for first in range(0, len(deletes), OPERATIONS_MAX):
                await self._metadata.transact([], deletes[first : first + OPERATIONS_MAX])
        except TidelogError as error:
            log.info("session notes not deleted: %s; each costs one read at later openings", error)


async def _until_done(failed: str, step: Callable[[], Awaitable[_Answer]]) -> _Answer:
    while True:
        try:
            return await step()
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("opening the session waits: %s: %s; retrying", failed, error)
            await asyncio.sleep(PAUSE_S)
