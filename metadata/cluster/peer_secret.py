"""The secret by which the brokers of one cluster know each other: made once, by the first that asks for it.

Brokers sign with keys that are derived from it (gateway/access/peer_tokens.py); the secret itself never travels between them. A
broker without etcd has no peers, and its store holds none.

The value of /{cluster}/peer_secret, text: 64 hex digits, 32 random bytes.

It stands in no snapshot: who reads the bucket must not pass for a broker. After a restore the first broker makes a new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from metadata.errors import Corrupt
from metadata.secret import Secret
from metadata.store.interface import Compare, Delete, MetadataStore, Put
from metadata.store.keys import EtcdLayout

SECRET_BYTES: Final = 32
_SECRET: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


async def read_peer_secret(store: MetadataStore, layout: EtcdLayout, random_bytes: Callable[[int], bytes]) -> Secret:
    """The cluster's. Raises Unavailable, OutcomeUnknown, Corrupt."""
    while True:
        kept = await store.get(layout.peer_secret)
        if kept is not None:
            text = kept.value.decode("ascii", "replace")
            if not _SECRET.fullmatch(text):
                raise Corrupt(
                    f"{layout.peer_secret} holds no secret", hint="Delete it, and restart all brokers.", key=layout.peer_secret
                )
            return Secret(text)
        made = random_bytes(SECRET_BYTES).hex().encode()
        await store.transact([Compare(layout.peer_secret, 0)], [Put(layout.peer_secret, made)])


async def forget_peer_secret(store: MetadataStore, layout: EtcdLayout) -> None:
    """Deletes the secret from the store of a broker without peers: earlier versions made one there. Raises Unavailable,
    OutcomeUnknown."""
    if await store.get(layout.peer_secret) is not None:
        await store.transact([], [Delete(layout.peer_secret)])
