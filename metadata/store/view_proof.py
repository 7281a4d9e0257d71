"""Proves repeatedly that records fed by watches equal those of the metadata store, and knows how old the last proof is.

    read each prefix ─▶ each watch is at that revision, or holds the same keys at the same revisions ─▶ proven, as of the
           │            │                                  └ it is at that revision from now on          start of the read
           │            └ not yet: compared again until the attempt is out of time
           └ no answer, or one of an earlier revision than the watch has seen: nothing is proven

A caller that is about to refuse something for lack of a record may ask for a proof at once (`catch_up`). All callers that wait
share one read; a read begins at most every REQUESTED_APART_S, and less often where reads take long. Anonymous callers, such as
those with made-up keys, wait for a read every ANONYMOUS_APART_S, and in at most half of the places.

A silent watch proves nothing: its etcd member may be cut off from the others. A read of etcd is linearizable, so its answer holds
everything that was written before the read was sent. Whole ranges are compared, because a deletion leaves no later revision.

Invariants: the view is current only if a proof was requested at most `age_s_max` ago. It never shows again what was deleted before
its last proof.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from metadata.errors import TidelogError, Unavailable
from metadata.model import Revision
from metadata.store.interface import MetadataStore, RangeResult

# Attempts of a proof within the allowed age.
ATTEMPTS: Final = 3
# Longest pause after a failed attempt, in seconds.
AGAIN_S: Final = 0.5
# Pause between two comparisons with watches that lag behind the store, in seconds.
CATCH_UP_S: Final = 0.05

# Least time from the beginning of a proof to that of one that callers wait for, in seconds; and as a multiple of the time it took.
REQUESTED_APART_S: Final = 0.1
REQUESTED_APART: Final = 4
# Least time from the beginning of a proof to that of one that only anonymous callers wait for.
ANONYMOUS_APART_S: Final = 1.0
# Callers that wait for a proof; others are refused at once.
WAITING_MAX: Final = 1_000

log = logging.getLogger(__name__)


class Followed(Protocol):
    """Holds records under one prefix, as RecordWatch does."""

    @property
    def prefix(self) -> str: ...
    @property
    def revision(self) -> Revision: ...
    @property
    def revisions(self) -> Mapping[str, Revision]: ...
    def is_at(self, revision: Revision) -> None: ...


class ViewProof:
    """Proves that watches are current. Its owner runs `run()`. With `age_s_max` None the view is always current."""

    def __init__(
        self, store: MetadataStore, followed: Sequence[Followed], *, age_s_max: float | None, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when the view has become too old; it must not block, nor raise."""
        self._store = store
        self._followed = followed
        self._age_s_max = age_s_max
        self._changed = changed
        self._proven_s = -math.inf
        self._proved = asyncio.Event()  # set, and replaced, at each proof
        self._why = ""
        # Numbers of the last proof that was begun, and of the last one that succeeded.
        self._begun = self._proven = 0
        # When the last proof was begun, by the loop's clock.
        self._begun_s = -math.inf
        self._requested = asyncio.Event()
        # Callers that wait, and those of them that are anonymous.
        self._waiting = self._anonymous = 0

    def stale_error(self) -> Unavailable | None:
        """Returns why the view cannot be relied on; None while it can."""
        if self._age_s_max is None:
            return None
        age_s = asyncio.get_running_loop().time() - self._proven_s
        if age_s <= self._age_s_max:
            return None
        since = f"for {age_s:.0f} s" if math.isfinite(age_s) else "since its start"
        return Unavailable(
            f"this broker has not heard from the metadata store {since}, so it cannot tell whether API keys and rights still hold",
            hint="Retry with back-off, or ask another broker. The broker's log says why the metadata store does not answer.",
        )

    async def wait_for_first(self) -> None:
        """Returns when the view was proven once."""
        while self._age_s_max is not None and self._proven_s == -math.inf:
            await self._proved.wait()

    async def catch_up(self, timeout_s: float, *, anonymous: bool = False) -> bool:
        """Waits for a proof that was begun after this call, so that the view holds everything that was written before it.

        `anonymous`: the caller has proven nothing yet. Returns False after `timeout_s`, and at once if WAITING_MAX callers wait
        already, or half as many anonymous ones.
        """
        if self._age_s_max is None:
            return True
        if self._waiting >= WAITING_MAX or (anonymous and self._anonymous >= WAITING_MAX // 2):
            return False
        wanted = self._begun + 1
        self._waiting += 1
        self._anonymous += anonymous
        loop = asyncio.get_running_loop()
        due_s = max(loop.time(), self._begun_s + ANONYMOUS_APART_S) if anonymous else loop.time()
        request = loop.call_at(due_s, self._requested.set)
        try:
            async with asyncio.timeout(timeout_s):
                while self._proven < wanted:
                    await self._proved.wait()
        except TimeoutError:
            return False
        finally:
            request.cancel()
            self._waiting -= 1
            self._anonymous -= anonymous
        return True

    async def run(self) -> None:
        """Proves the view, and reports when it becomes too old, until cancelled."""
        if self._age_s_max is None:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._prove(self._age_s_max))
            tasks.create_task(self._watch_age(self._age_s_max))

    async def _prove(self, age_s_max: float) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            asked_s, pause_s = clock(), age_s_max / ATTEMPTS
            self._requested.clear()
            self._begun += 1
            self._begun_s = asked_s
            try:
                # Not shorter: an attempt that is cut short never moves from a silent member of etcd to the next one.
                async with asyncio.timeout(age_s_max):
                    await self._confirm()
            except (TidelogError, TimeoutError) as error:
                self._why = str(error) or f"no answer within {age_s_max:g} s"
                await asyncio.sleep(max(0.0, asked_s + min(pause_s, AGAIN_S) - clock()) or CATCH_UP_S)
                continue
            self._proven_s, self._proven, self._why = asked_s, self._begun, ""
            proved, self._proved = self._proved, asyncio.Event()
            proved.set()
            took_s = clock() - asked_s
            await self._pause(
                max(0.0, pause_s - took_s) or CATCH_UP_S, max(REQUESTED_APART_S - took_s, (REQUESTED_APART - 1) * took_s)
            )

    async def _pause(self, pause_s: float, requested_pause_s: float) -> None:
        """Waits for `pause_s`, or, as soon as a caller waits for a proof, for no longer than `requested_pause_s`."""
        least_s = max(0.0, min(pause_s, requested_pause_s))
        await asyncio.sleep(least_s)
        if pause_s > least_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s - least_s):
                    await self._requested.wait()

    async def _confirm(self) -> None:
        """Returns when the view holds everything that was written before this call. Raises what the store raises."""
        seen = [records.revision for records in self._followed]
        found = [await self._store.range(records.prefix) for records in self._followed]
        for before, now in zip(seen, found, strict=True):
            if now.revision < before:
                raise Unavailable(f"the metadata are at revision {now.revision}, and were at {before}: they were lost or set back")
        expected = [_revisions(records.prefix, now) for records, now in zip(self._followed, found, strict=True)]
        while True:
            if all(
                records.revision >= now.revision or records.revisions == held
                for records, now, held in zip(self._followed, found, expected, strict=True)
            ):
                break
            await asyncio.sleep(CATCH_UP_S)
        for records, now in zip(self._followed, found, strict=True):
            records.is_at(now.revision)

    async def _watch_age(self, age_s_max: float) -> None:
        clock = asyncio.get_running_loop().time
        await self.wait_for_first()
        while True:
            left_s = self._proven_s + age_s_max - clock()
            if left_s >= 0:
                await asyncio.sleep(left_s + 0.001)
                continue
            log.warning("API keys and ACLs were not confirmed for %.1f s; requests are refused: %s", age_s_max, self._why)
            self._changed()
            await self._proved.wait()
            log.warning("API keys and ACLs are confirmed again; requests are served")


def _revisions(prefix: str, found: RangeResult) -> dict[str, Revision]:
    return {item.key.removeprefix(prefix): item.mod_revision for item in found.items}
