"""Divides memory_bytes_max of a process among its buffers and caches, and checks that the configured sizes fit. Pure.

    memory_bytes_max (1 GiB) = 192 MiB for the process itself: interpreter, libraries, connections
                             + 26 shares (of 32 MiB):  buffer 2   tail cache 2   read cache 2   history reads 3   footers 2
                                                       responses 2 for each listener: HTTP, gRPC and Kafka   waiting gRPC requests 2
                                                       key map of compaction 4
                             + 3 shares in reserve: idempotent producers, fragmentation, decompression

A part that is set by name takes its bytes first. The other parts get their shares, or smaller ones of the rest, but never less than
they need to work. If even these do not fit, `check_memory` refuses the start, and its hint names a sufficient memory_bytes_max.
Files that compaction builds are no part, since their size follows the bucket's layout; the shares beside them are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metadata.errors import InvalidArgument

MIB: Final = 1 << 20
MEMORY_BYTES_DEFAULT: Final = 1024 * MIB
# An idle broker takes 130 MiB. The rest is for connections, threads and requests that are being decoded.
PROCESS_BYTES: Final = 192 * MIB
SHARES: Final = 26


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the memory: its shares out of SHARES, and how many times a process holds it (`times`, one for each listener)."""

    shares: int
    # Below this size the part cannot work: a row group takes 17 MiB, and twice that while it is decoded.
    least_bytes: int = 16 * MIB
    times: int = 1
    # Only compaction holds this part; a broker that does not compact has none of it.
    by_compaction: bool = False


PARTS: Final[Mapping[str, Part]] = {
    "buffer_bytes_max": Part(2),
    "tail_cache_bytes_max": Part(2),
    "read_cache_bytes_max": Part(2, least_bytes=20 * MIB),
    "history_read_bytes_max": Part(3, least_bytes=40 * MIB),
    "footer_cache_bytes_max": Part(2),
    "answer_bytes_max": Part(2, times=3),
    "grpc_waiting_bytes_max": Part(2),
    "key_map_bytes_max": Part(4, by_compaction=True),
}


def memory_shares(
    memory_bytes_max: int,
    *,
    chosen: Mapping[str, int],
    least: Mapping[str, int],
    compacts: bool = False,
    files_bytes: int = 0,
) -> dict[str, int]:
    """Returns the bytes of each part.

    `chosen`: the parts that are set by name. `least`: the bytes that other settings require of a part. `compacts`: the broker also
    compacts, so the key map shares its memory. `files_bytes`: the memory of files that compaction builds; the other parts get
    shares of the rest, and at least their shares of the default memory.
    """
    free = memory_bytes_max - PROCESS_BYTES
    beside_files = min(free, max(free - files_bytes, MEMORY_BYTES_DEFAULT - PROCESS_BYTES))
    free = beside_files if compacts else free
    floors = {name: max(part.least_bytes, least.get(name, 0)) for name, part in PARTS.items()}
    settled = dict(chosen)
    if not compacts:  # another process holds the key map, in its own memory
        key_map = PARTS["key_map_bytes_max"].shares * beside_files // SHARES // MIB * MIB
        settled = {"key_map_bytes_max": max(key_map, floors["key_map_bytes_max"])} | settled
    while True:
        ours = {name: PARTS[name] for name in settled if compacts or not PARTS[name].by_compaction}
        left = free - sum(part.times * settled[name] for name, part in ours.items())
        left_shares = SHARES - sum(part.times * part.shares for part in ours.values())
        share = min(free / SHARES, left / left_shares)
        shares = {name: int(part.shares * share) // MIB * MIB for name, part in PARTS.items() if name not in settled}
        small = {name: floors[name] for name, bytes_count in shares.items() if bytes_count < floors[name]}
        if not small:
            return shares | settled
        settled |= small  # the others share what these leave


def check_memory(memory_bytes_max: int, parts: Mapping[str, int], *, serves: bool, compacts: bool) -> None:
    """Raises InvalidArgument if the parts that the process holds do not fit beside the process itself.

    `serves`: the process is a broker. `compacts`: it compacts, alone or as part of a broker.
    """
    held = {name: part.times * parts[name] for name, part in PARTS.items() if (compacts if part.by_compaction else serves)}
    needed = PROCESS_BYTES + sum(held.values())
    if needed <= memory_bytes_max:
        return
    large = [name for name in held if parts[name] > PARTS[name].shares * (MEMORY_BYTES_DEFAULT - PROCESS_BYTES) // SHARES]
    listed = ", ".join(
        f"{name} {shown_bytes(parts[name])}{f' x {PARTS[name].times}' if PARTS[name].times > 1 else ''}" for name in held
    )
    raise InvalidArgument(
        f"memory_bytes_max is {shown_bytes(memory_bytes_max)}, and its parts need {shown_bytes(needed)}: "
        f"{shown_bytes(PROCESS_BYTES)} for the process, {listed}",
        hint=f"Set memory_bytes_max to {shown_bytes(-(-needed // MIB) * MIB)} or more"
        + (f", or lower {' or '.join(large)}." if large else "."),
    )


def shown_bytes(count: int) -> str:
    """Formats a number of bytes as settings accept it: 2GiB, 64MiB, 48KiB, 1000."""
    return next(
        (
            f"{count // unit}{name}"
            for unit, name in ((1024 * MIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"))
            if count and count % unit == 0
        ),
        str(count),
    )
