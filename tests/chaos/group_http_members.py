"""A consumer group over plain HTTP in a chaos run, as docs/guides/groups.md describes it: any broker each time, a cursor, and 409.

    join ─▶ read, which commits what the cursor before has read ─▶ … ─▶ 409 ─▶ commit, join again ─▶ …

Besides, somebody who asks now and then what the groups have committed, and how far behind they are in the end.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import aiohttp

from tests.chaos.history import (
    Assigned,
    Committed,
    CommittedReported,
    GaveUp,
    GroupEnd,
    HandedOut,
    History,
    Lived,
    Processed,
    Unexpected,
)
from tests.chaos.http_workload import CONNECT_TIMEOUT_S, PAUSE_S, REQUEST_TIMEOUT_S
from tests.chaos.workload import TOPIC, value_of

GROUP: Final = "http-group"
MEMBERS: Final = 2
LIFE_S: Final = (10.0, 50.0)
DROPPED_CHANCE: Final = 0.3
SESSION_TIMEOUT_MS: Final = 6_000
REBALANCE_TIMEOUT_MS: Final = 12_000
JOIN_TIMEOUT_S: Final = 20.0
WAIT_MS: Final = 1_000
RECORDS_MAX: Final = 500
WORK_S: Final = 0.05
ASKED_EVERY_S: Final = 0.5


class Reported(NamedTuple):
    # 0: no answer.
    status: int
    content: Any

    @property
    def code(self) -> str:
        return str(self.content.get("code", "")) if isinstance(self.content, dict) else ""

    @property
    def may_pass(self) -> bool:
        """No broker answered, or none can for the moment."""
        return self.status in {0, HTTPStatus.TOO_MANY_REQUESTS} or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def why(self) -> str:
        return f"{self.status} {self.code}: {self.content.get('detail') if isinstance(self.content, dict) else self.content}"


class GroupEndpoints:
    """Any broker, another each time."""

    def __init__(self, urls: Mapping[str, str], session: aiohttp.ClientSession, rng: random.Random) -> None:
        self._urls = sorted(urls.values())
        self._session = session
        self._rng = rng

    async def ask(self, verb: str, path: str, body: Any = None, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Reported:
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            url = f"{self._rng.choice(self._urls)}/v1/groups/{path}"
            async with self._session.request(verb, url, json=body, timeout=timeout) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            return Reported(0, f"{type(error).__name__}: {error}")
        try:
            return Reported(response.status, json.loads(content) if content else None)
        except ValueError:
            return Reported(response.status, content.decode(errors="replace"))


class HttpMember:
    """One life after the other. `run` until it is cancelled."""

    def __init__(
        self,
        name: str,
        urls: Mapping[str, str],
        session: aiohttp.ClientSession,
        history: History,
        *,
        seed: int,
        enough: asyncio.Event,
    ) -> None:
        self.name = name
        self._history = history
        self._rng = random.Random(seed)
        self._endpoints = GroupEndpoints(urls, session, self._rng)
        self._enough = enough

    async def run(self) -> None:
        lives = 0
        while True:
            began_s = self._history.now_s
            life = _Life(f"{self.name}.{lives}", self._endpoints, self._history, self._rng)
            living = asyncio.create_task(life.live(), name=life.member)
            try:
                await asyncio.wait((living,), timeout=self._rng.uniform(*LIFE_S))
                if self._enough.is_set():
                    await asyncio.wait((living,))
            finally:
                living.cancel()
                await asyncio.wait((living,))
            if not living.cancelled():
                living.result()
            dropped = self._rng.random() < DROPPED_CHANCE
            if not dropped:
                await life.leave()
            self._history.add(Lived(self._history.now_s, began_s, GROUP, life.member, dropped))
            lives += 1


class _Life:
    def __init__(self, member: str, endpoints: GroupEndpoints, history: History, rng: random.Random) -> None:
        self.member = member
        self._endpoints = endpoints
        self._history = history
        self._rng = rng
        self._member_id = ""
        self._generation = 0
        self._cursor = ""
        self._partitions: tuple[int, ...] = ()
        self._uncommitted: dict[int, int] = {}
        """What the cursor has read."""

    async def live(self) -> None:
        while True:
            if await self._join():
                while await self._read():
                    pass
                self._give_up()
            else:
                await asyncio.sleep(PAUSE_S)

    async def leave(self) -> None:
        if self._member_id and self._uncommitted:
            await self._commit()
        if self._member_id:
            await self._endpoints.ask("DELETE", self._path)
        self._give_up()

    @property
    def _path(self) -> str:
        return f"{GROUP}/members/{quote(self._member_id, safe='')}"

    def _give_up(self) -> None:
        self._history.add(GaveUp(self._history.now_s, GROUP, self.member, self._partitions))
        self._partitions = ()

    def _refused(self, reported: Reported) -> None:
        """Whatever comes of it, the member joins again."""
        match reported.code:
            case "REBALANCE_IN_PROGRESS" | "STALE_GENERATION":
                pass
            case "UNKNOWN_MEMBER":
                self._member_id = ""
            case _:
                self._history.add(Unexpected(self._history.now_s, self.member, reported.why))

    async def _join(self) -> bool:
        asked = {
            "topics": [TOPIC],
            "member_id": self._member_id,
            "client_id": self.member,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
        }
        reported = await self._endpoints.ask("POST", f"{GROUP}/members", asked, timeout_s=JOIN_TIMEOUT_S)
        if reported.status != HTTPStatus.CREATED:
            if isinstance(reported.content, dict):
                self._member_id = reported.content.get("member_id", self._member_id)
            if not reported.may_pass:
                self._refused(reported)
            return False
        self._member_id, self._generation = reported.content["member_id"], reported.content["generation"]
        self._cursor, self._uncommitted = "", {}
        self._partitions = tuple(number for topic in reported.content["assignment"] for number in topic["partitions"])
        self._history.add(Assigned(self._history.now_s, GROUP, self.member, self._generation, self._partitions))
        return True

    async def _read(self) -> bool:
        """Whether to go on in this generation."""
        query = f"generation={self._generation}&cursor={self._cursor}&commit=true&wait_ms={WAIT_MS}&max_records={RECORDS_MAX}"
        reported = await self._endpoints.ask("GET", f"{self._path}/records?{query}&value_format=text")
        if reported.status == HTTPStatus.OK:
            self._acknowledged(self._uncommitted)
            await self._work_on(reported.content)
            return True
        if reported.may_pass:
            await asyncio.sleep(PAUSE_S)
            return True
        self._refused(reported)
        if self._member_id and self._uncommitted:
            await self._commit()
        return False

    async def _work_on(self, page: Any) -> None:
        for beside in page.get("errors", ()):
            if not beside["error"]["retryable"]:
                self._history.add(Unexpected(self._history.now_s, self.member, f"an answer has {beside}"))
        if page.get("resets"):
            self._history.add(Unexpected(self._history.now_s, self.member, f"an answer has resets: {page['resets']}"))
        found: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        for record in page["records"]:
            found[record["partition"]].append((record["offset"], value_of(record["value"].encode())))
        for partition, records in found.items():
            self._history.add(HandedOut(self._history.now_s, GROUP, self.member, self._generation, partition, tuple(records)))
        if found:
            await asyncio.sleep(self._rng.uniform(0.0, WORK_S))
        self._cursor = page["cursor"]
        for partition, records in found.items():
            self._uncommitted[partition] = records[-1][0] + 1
            self._history.add(Processed(self._history.now_s, GROUP, self.member, partition, records[-1][0] + 1))

    async def _commit(self) -> None:
        reported = await self._endpoints.ask(
            "POST", f"{self._path}/offsets", {"generation": self._generation, "cursor": self._cursor}
        )
        if reported.status == HTTPStatus.OK:
            self._acknowledged(
                {offset["partition"]: offset["offset"] for offset in reported.content["offsets"] if "error" not in offset}
            )
        elif not reported.may_pass:
            self._refused(reported)

    def _acknowledged(self, offsets: Mapping[int, int]) -> None:
        if offsets:
            self._history.add(Committed(self._history.now_s, GROUP, self.member, tuple(offsets.items())))
        self._uncommitted = {}


class GroupWatcher:
    """Asks any broker what each group has committed. `run` until it is cancelled."""

    name = "group-watcher"

    def __init__(
        self, groups: Sequence[str], urls: Mapping[str, str], session: aiohttp.ClientSession, history: History, *, seed: int
    ):
        self._groups = groups
        self._history = history
        self._endpoints = GroupEndpoints(urls, session, random.Random(seed))

    async def run(self) -> None:
        while True:
            for group in self._groups:
                asked_s = self._history.now_s
                reported = await self._endpoints.ask("GET", f"{group}/offsets?topic={TOPIC}")
                if reported.status == HTTPStatus.OK:
                    offsets = tuple((offset["partition"], offset["offset"]) for offset in reported.content["offsets"])
                    self._history.add(CommittedReported(self._history.now_s, asked_s, group, offsets))
                elif not reported.may_pass:
                    self._history.add(Unexpected(self._history.now_s, self.name, f"{group}: {reported.why}"))
            await asyncio.sleep(ASKED_EVERY_S)

    async def at_rest(self, ends: Mapping[int, int]) -> None:
        """Returns when every group has committed all, up to `ends` by partition. The history records in any case where they are."""
        last: dict[str, GroupEnd] = {}
        try:
            for group in self._groups:
                while True:
                    reported = await self._endpoints.ask("GET", group)
                    if reported.status == HTTPStatus.OK:
                        offsets = {lag["partition"]: lag["committed_offset"] for lag in reported.content["lags"]}
                        committed = tuple((partition, offset) for partition, offset in offsets.items() if offset is not None)
                        last[group] = GroupEnd(self._history.now_s, group, reported.content["lag_records"], committed)
                        if not reported.content["lag_records"] and all(
                            offsets.get(partition) == end for partition, end in ends.items()
                        ):
                            break
                    await asyncio.sleep(PAUSE_S)
        finally:
            for group in self._groups:
                self._history.add(last.get(group, GroupEnd(self._history.now_s, group, sum(ends.values()), ())))
