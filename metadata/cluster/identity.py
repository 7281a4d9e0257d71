"""Keeps the cluster's id and its peer secret; each is written once, by the first broker that needs it.

The id stands on the bucket as well, so that the metadata of one cluster are never used with the bucket of another.

Brokers sign with keys that are derived from the secret (gateway/access/peer_tokens.py); the secret itself never travels between
them. A broker without etcd has no peers, and its store holds none.

The value of /{cluster}/peer_secret, text: 64 hex digits, 32 random bytes.

No snapshot holds the secret: a reader of the bucket must not pass for a broker. After a restore the first broker makes a new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from metadata.errors import Corrupt, InvalidArgument, OutcomeUnknown, Unavailable
from metadata.secret import Secret
from metadata.store.interface import Compare, Delete, MetadataStore, Put
from metadata.store.keys import KeyLayout

ATTEMPTS_MAX = 8
_CLUSTER_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")


async def cluster_id(store: MetadataStore, new_id: str, layout: KeyLayout | None = None) -> str:
    """Returns the cluster's id; where it has none yet, stores `new_id` (1 to 64 of a-z A-Z 0-9 _ -) as its id.

    Brokers that start at once all get the same answer. Raises InvalidArgument, Unavailable, Corrupt.
    """
    key = (layout or KeyLayout()).cluster_id
    if not _CLUSTER_ID.fullmatch(new_id.encode(errors="replace")):
        raise InvalidArgument(f"{new_id[:64]!r} is not an id for a cluster", hint="Use 1 to 64 of a-z A-Z 0-9 _ and -.")
    unknown: OutcomeUnknown | None = None
    for _ in range(ATTEMPTS_MAX):
        held = await store.get(key)
        if held is not None:
            if not _CLUSTER_ID.fullmatch(held.value):
                raise Corrupt(f"{key} holds no cluster id", key=key, revision=held.mod_revision)
            return held.value.decode()
        try:
            if (await store.transact([Compare(key, 0)], [Put(key, new_id.encode())])).succeeded:
                return new_id
        except OutcomeUnknown as error:  # the next read shows which id was stored
            unknown = error
    raise Unavailable("the cluster's id could not be read or written", key=key) from unknown


SECRET_BYTES: Final = 32
_SECRET: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


async def read_peer_secret(store: MetadataStore, layout: KeyLayout, random_bytes: Callable[[int], bytes]) -> Secret:
    """Returns the cluster's secret, and makes one where there is none. Raises Unavailable, OutcomeUnknown, Corrupt."""
    return await _read_secret(store, layout.peer_secret, random_bytes)


async def read_scram_secret(store: MetadataStore, layout: KeyLayout, random_bytes: Callable[[int], bytes]) -> Secret:
    """Returns the secret that the salts of unknown users are made with, so that all brokers answer the same. Raises likewise."""
    return await _read_secret(store, layout.scram_secret, random_bytes)


async def _read_secret(store: MetadataStore, record_key: str, random_bytes: Callable[[int], bytes]) -> Secret:
    while True:
        kept = await store.get(record_key)
        if kept is not None:
            text = kept.value.decode("ascii", "replace")
            if not _SECRET.fullmatch(text):
                raise Corrupt(f"{record_key} holds no secret", hint="Delete it, and restart all brokers.", key=record_key)
            return Secret(text)
        made = random_bytes(SECRET_BYTES).hex().encode()
        await store.transact([Compare(record_key, 0)], [Put(record_key, made)])


async def forget_peer_secret(store: MetadataStore, layout: KeyLayout) -> None:
    """Deletes the secret of a broker without peers, left by earlier versions. Raises Unavailable, OutcomeUnknown."""
    if await store.get(layout.peer_secret) is not None:
        await store.transact([], [Delete(layout.peer_secret)])
