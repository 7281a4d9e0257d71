"""The compactors of one simulated world, and what befalls them: killed, frozen with their requests on the wire, two at a time.

All chance is drawn apart from the world's, so that whether there are compactors changes nothing else about a seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from compaction.settings import CompactionSettings
from segments.settings import MIB
from tests.kit.faulty_store import CALM, STORMY, Outage
from tests.simulation.blows import BUSY, CONFLICTS, LOSSY, SLOW
from tests.simulation.broker_process import Site
from tests.simulation.compactor_process import CompactorProcess


class Compactors:
    def __init__(self, site: Site, note: Callable[[str], None]) -> None:
        self._chance = random.Random(f"{site.seed}/compactors")
        self._site = site
        self._note = note
        self.processes: list[CompactorProcess] = []
        self.slots: dict[str, CompactorProcess] = {}
        self.clocks_jump = 0
        self.settings = replace(_settings(self._chance), **_of_keys(random.Random(f"{site.seed}/keys")))
        self.count = self._chance.choice((0, 0, 1, 2))

    def start(self) -> None:
        for number in range(self.count):
            self._start(f"c{number + 1}")

    def _start(self, slot: str) -> None:
        process = CompactorProcess(f"{slot}.{len(self.processes) + 1}", self._site, self.settings, faults=CALM)
        self._note(f"{process.name} starts")
        self.processes.append(process)
        self.slots[slot] = process
        self.clocks_jump += bool(process.jump_ms)

    async def rain(self) -> None:
        """Blow after blow, until cancelled."""
        if not self.slots:
            return
        blows = (self._kill, self._freeze, self._freeze, self._weather, self._out, self._slow)
        async with asyncio.TaskGroup() as under_way:
            while True:
                await asyncio.sleep(self._chance.uniform(0.5, 6.0))
                under_way.create_task(self._chance.choice(blows)(self._chance.choice(list(self.slots))))

    def calm_down(self) -> None:
        """In each slot one lives, and all that ails it is over; those that were stalled wake and see what became of their work."""
        for slot, process in tuple(self.slots.items()):
            process.store.faults = CALM
            process.store.outage = Outage.NONE
            process.store.slow_factor = 1.0
            process.thaw()
            if not process.alive:
                self._start(slot)
        for process in self.processes:
            process.jump_ms = 0
            process.thaw()

    def kill_all(self) -> None:
        for process in self.processes:
            process.kill()

    def tallies(self) -> dict[str, int]:
        """What they did, to see that it was worth the while."""
        counters = [process.counters for process in self.processes]
        return {
            "compactors": len(self.processes),
            "clocks of compactors that jump a day": self.clocks_jump,
            "manifests": sum(one.manifests for one in counters),
            "manifests lost to another": sum(one.lost for one in counters),
            "files of history": sum(one.files for one in counters),
            "segments read to compact": sum(one.segments_read for one in counters),
            "merges": sum(one.merges for one in counters),
        }

    async def _kill(self, slot: str) -> None:
        victim = self.slots[slot]
        if victim.alive:
            self._note(f"{victim.name} is killed")
            victim.kill()
            victim.store.thaw()
        await asyncio.sleep(self._chance.choice((0.0, 2.0)))
        if self.slots[slot] is victim:
            self._start(slot)

    async def _freeze(self, slot: str) -> None:
        """Mostly while another takes its place, which compacts, trims and collects what this one was at."""
        stalled = self.slots[slot]
        if not stalled.alive or stalled.frozen:
            return
        self._note(f"{stalled.name} is frozen")
        stalled.freeze(wire_too=self._chance.random() < 0.5)
        if self._chance.random() < 0.7:
            self._start(slot)
        await asyncio.sleep(self._chance.choice((0.5, 5.0, 30.0)))
        stalled.thaw()

    async def _weather(self, slot: str) -> None:
        self.slots[slot].store.faults = self._chance.choice((CALM, STORMY, LOSSY, SLOW, BUSY, CONFLICTS))

    async def _out(self, slot: str) -> None:
        process = self.slots[slot]
        process.store.outage = self._chance.choice((Outage.REFUSES, Outage.HANGS, Outage.ERRORS))
        await asyncio.sleep(self._chance.choice((0.5, 5.0)))
        process.store.outage = Outage.NONE

    async def _slow(self, slot: str) -> None:
        process = self.slots[slot]
        process.store.slow_factor = self._chance.choice((10.0, 100.0))
        await asyncio.sleep(self._chance.uniform(1.0, 10.0))
        process.store.slow_factor = 1.0


def _of_keys(chance: random.Random) -> dict[str, Any]:
    """Of key compaction: some passes end where the map of keys is full. A pass costs some milliseconds for each row group."""
    return {
        "dirty_ratio_min": chance.choice((0.5, 0.8)),
        "key_map_bytes_max": chance.choice((2000, MIB, MIB)),
        "row_group_bytes": chance.choice((1500, 4000)),
    }


def _settings(chance: random.Random) -> CompactionSettings:
    """Everything that takes minutes and hours elsewhere takes seconds."""
    return CompactionSettings(
        compaction_interval_ms=chance.choice((500.0, 2000.0)),
        compaction_due_bytes=chance.choice((500, 5000)),
        compaction_due_age_ms=chance.choice((500.0, 3000.0)),
        compaction_threads=chance.choice((1, 2)),
        compaction_reads_max=chance.choice((1, 4)),
        scratch_bytes_max=chance.choice((10_000, MIB)),
        history_file_bytes_max=chance.choice((8_000, MIB)),
        row_group_bytes=chance.choice((500, 4_000)),
        delete_grace_ms=chance.choice((0.0, 1000.0, 10_000.0)),
        merge_bytes_min=chance.choice((5_000, 20_000)),
        merge_bytes_max=50_000,
        merge_files_min=chance.choice((2, 4)),
        bucket_listing_interval_ms=chance.choice((3000.0, 30_000.0)),
        bucket_retry_ms=chance.choice((0.0, 5000.0)),
        compactor_ttl_ms=3000.0,
    )
