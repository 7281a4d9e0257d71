"""Finds out whether another copy of the metadata has appointed leaders on the bucket, so that these are the copy that has lost.

    key of these metadata       batches on the bucket
    number 41                   …  41  42         42 is being applied
    number 41                   …  41  42  43     another copy has gone on: batch 43 is created once 42 is applied

The brokers of such a copy end (gateway/controller/appointment_log.py). A compactor of its own appoints no leader, and would let
records expire by the settings that topics had when the copy was made.
"""

from __future__ import annotations

from metadata.controller.appointments import decode_progress
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from segments.bucket.layout import APPOINTMENTS, appointments_key, parse_appointments_key
from segments.object_store.interface import ObjectStore


async def is_overtaken(bucket: ObjectStore, metadata: MetadataStore, layout: KeyLayout) -> bool:
    """Returns whether the bucket holds batches of appointments that these metadata have not applied, nor are about to.

    Raises what the stores raise, and Corrupt.
    """
    behind = appointments_key(await _applied(metadata, layout) + 1)
    later = (await bucket.list(APPOINTMENTS, start_after=behind, limit=1)).objects
    number = parse_appointments_key(later[0].key) if later else None
    # A controller of these metadata may have gone on since the first read.
    return number is not None and number > await _applied(metadata, layout) + 1


async def _applied(metadata: MetadataStore, layout: KeyLayout) -> int:
    return decode_progress(await metadata.get(layout.appointments), key=layout.appointments).number
