"""Verifies the bucket in the background, as `tidelog bucket verify` does: one verification at a time.

    POST ─▶ begin ─▶ run(): compaction/audit/, at most TIMEOUT_S ─▶ done | failed | cancelled      GET ─▶ state
    DELETE ─▶ cancel ──┘

It reads footers and manifests, not records: `tidelog bucket verify --deep` reads every byte. Invariants: memory is bounded by
RUNS_MAX and FINDINGS_MAX; a bucket with more runs in segments is refused with a hint. Nothing is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from metadata.errors import AlreadyExists, NotFound, TidelogError
from segments.object_store.interface import ObjectStore

TIMEOUT_S: Final = 3_600.0
# Runs of batches in segments that are kept in memory, some 300 bytes each.
RUNS_MAX: Final = 300_000
FINDINGS_MAX: Final = 100

State = Literal["none", "running", "done", "failed", "cancelled"]

log = logging.getLogger(__name__)


class FoundFault(NamedTuple):
    """Holds one finding of a verification."""

    # damage, or note.
    severity: str
    where: str
    what: str


class Verification(NamedTuple):
    """Describes the last verification of this broker."""

    state: State = "none"
    # The principal that has begun it; empty without authentication.
    begun_by: str = ""
    begun_at_ms: int = 0
    ended_at_ms: int = 0
    # Segments and Parquet files: how many were read, and how many there are as far as is known.
    segments_read: int = 0
    segments: int = 0
    files_read: int = 0
    files: int = 0
    is_sound: bool = False
    sessions: int = 0
    records: int = 0
    # What a compactor deletes once delete_grace_ms is over.
    collectable_objects: int = 0
    collectable_bytes: int = 0
    findings: tuple[FoundFault, ...] = ()
    findings_left_out: int = 0
    # Why it failed.
    error: str = ""
    hint: str = ""


class BucketVerifier:
    """Verifies the bucket when a caller has begun one. Its owner runs `run()` as a task."""

    def __init__(self, store: ObjectStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._asked = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        # Of the verification that was begun last.
        self._number = 0
        self.state = Verification()

    def begin(self, principal: str) -> Verification:
        """Begins a verification. Raises AlreadyExists while one runs."""
        if self.state.state == "running":
            raise AlreadyExists(
                "a verification of the bucket is running at this broker",
                hint="Wait for its end, or cancel it: DELETE /v1/verification.",
            )
        self._number += 1
        self.state = Verification(state="running", begun_by=principal, begun_at_ms=self._now_ms())
        self._asked.set()
        return self.state

    def cancel(self) -> Verification:
        """Ends the verification that runs. Raises NotFound if none does."""
        if self.state.state != "running":
            raise NotFound("no verification of the bucket is running at this broker", hint="Begin one: POST /v1/verification.")
        if self._reading is not None:
            self._reading.cancel()
        self._asked.clear()
        self._end(state="cancelled")
        return self.state

    async def run(self) -> None:
        """Verifies the bucket whenever a caller has begun one, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            if self.state.state != "running":
                continue  # cancelled before it began
            async with asyncio.TaskGroup() as tasks:
                self._reading = tasks.create_task(self._verify(self._number), name="verification of the bucket")
            self._reading = None

    async def _verify(self, number: int) -> None:
        from compaction.audit.bucket_audit import audit_bucket  # it loads Arrow, which few brokers need otherwise

        def advance(what: str, done: int, of: int) -> None:
            if not self._is_current(number):
                return
            if what == "segments":
                self.state = self.state._replace(segments_read=done, segments=of)
            else:
                self.state = self.state._replace(files_read=done, files=of)

        try:
            async with asyncio.timeout(TIMEOUT_S):
                audit = await audit_bucket(self._store, advance=advance, runs_max=RUNS_MAX)
        except TidelogError as error:
            self._end_of(number, state="failed", error=error.message, hint=error.hint)
        except TimeoutError:
            self._end_of(number, state="failed", error=f"it took more than {TIMEOUT_S:g} s", hint="Run `tidelog bucket verify`.")
        except Exception as error:
            log.exception("verifying the bucket failed")
            self._end_of(number, state="failed", error=f"{type(error).__name__}: look into the broker's log")
        else:
            worst_first = sorted(audit.findings, key=lambda each: each.severity)  # damage before notes
            self._end_of(
                number,
                state="done",
                is_sound=audit.is_sound,
                sessions=audit.sessions,
                segments=audit.segments,
                records=audit.records,
                collectable_objects=audit.collectable_objects,
                collectable_bytes=audit.collectable_bytes,
                findings=tuple(FoundFault(each.severity, each.where, each.what) for each in worst_first[:FINDINGS_MAX]),
                findings_left_out=max(0, len(worst_first) - FINDINGS_MAX),
            )

    def _is_current(self, number: int) -> bool:
        return self.state.state == "running" and self._number == number

    def _end_of(self, number: int, **found: object) -> None:
        if self._is_current(number):
            self._end(**found)

    def _end(self, **found: object) -> None:
        self.state = self.state._replace(ended_at_ms=self._now_ms(), **found)  # type: ignore[arg-type]  # callers name fields of the state
