"""Notes in the metadata that a session writes, at most once in NOTE_INTERVAL_S, under the broker's lease.

    /{cluster}/written/{session}    how many of its segments are committed ─▶ the controller (gateway/controller/write_proofs.py)

A note decides nothing. It tells the controller that records were written since its last batch of appointments. A session that
writes nothing, or that cannot reach the metadata, leaves no note.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from metadata.errors import TidelogError
from metadata.model import SegmentSeq, SessionId
from metadata.store.interface import LeaseId, LeaseLost, MetadataStore, Put
from metadata.store.keys import KeyLayout

NOTE_INTERVAL_S: Final = 60.0

log = logging.getLogger(__name__)


async def note_writes(
    metadata: MetadataStore, layout: KeyLayout, session: SessionId, lease: LeaseId, committed_to: Callable[[], SegmentSeq]
) -> None:
    """Notes the writes of a session until its lease ends, or until cancelled. `committed_to` returns how far it has committed."""
    noted = SegmentSeq(0)
    while True:
        await asyncio.sleep(NOTE_INTERVAL_S)
        committed = committed_to()
        if committed == noted:
            continue
        try:
            await metadata.transact([], [Put(layout.written_by(session), str(committed).encode(), lease)])
            noted = committed
        except LeaseLost:
            return
        except TidelogError as error:
            log.info("writes not noted session=%s: %s; retrying", session, error)
