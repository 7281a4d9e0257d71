"""Who this cluster is: an id that is written once, and stands on the bucket as well, so that the two are never mixed up."""

from __future__ import annotations

import re

from metadata.errors import Corrupt, InvalidArgument, OutcomeUnknown, Unavailable
from metadata.store.interface import Compare, MetadataStore, Put
from metadata.store.keys import EtcdLayout

ATTEMPTS_MAX = 8
_CLUSTER_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")


async def cluster_id(store: MetadataStore, new_id: str, layout: EtcdLayout | None = None) -> str:
    """The cluster's id; where it has none yet, `new_id` (1 to 64 of a-z A-Z 0-9 _ -) becomes it.

    Of brokers that start at once all get the same answer. Raises InvalidArgument, Unavailable, Corrupt.
    """
    key = (layout or EtcdLayout()).cluster_id
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
        except OutcomeUnknown as error:  # the next look tells whose it became
            unknown = error
    raise Unavailable("the cluster's id could not be read or written", key=key) from unknown
