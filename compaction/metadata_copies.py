"""Finds out whether another copy of the metadata has appointed leaders on the bucket, so that these are the copy that has lost.

    key of these metadata       batches on the bucket
    number 41                   …  41
    number 41, pending [x]      …  41  42         42 has nonce x: a controller of these metadata has created it, and applies it
    number 41, pending [x]      …  41  42         42 has another nonce: another copy has gone on
    number 41                   …  41  …  57      another copy has gone on: batch 57 is created once 56 is applied

The brokers of such a copy end (gateway/controller/appointment_log.py). A compactor of its own appoints no leader, and would let
records expire by the settings that topics had when the copy was made.
"""

from __future__ import annotations

from metadata.controller.appointments import Progress, decode_batch, decode_progress
from metadata.errors import NotFound, Unavailable
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from segments.bucket.layout import APPOINTMENTS, appointments_key, parse_appointments_key
from segments.object_store.interface import ObjectStore

# Attempts to read a batch while batches are deleted.
ATTEMPTS_MAX = 8


async def is_overtaken(bucket: ObjectStore, metadata: MetadataStore, layout: KeyLayout) -> bool:
    """Returns whether the bucket holds a batch of appointments that no controller of these metadata has created.

    Raises what the stores raise, Corrupt, and Rejected for a batch of a newer version.
    """
    for _ in range(ATTEMPTS_MAX):
        number = await _last_after(bucket, (await _progress(metadata, layout)).number)
        if number is None:
            return False
        key = appointments_key(number)
        try:
            body = await bucket.get(key)
        except NotFound:  # collected: later ones are there
            continue
        # A controller notes the nonce before it creates the batch, and may have gone on since the first read.
        progress = await _progress(metadata, layout)
        if number <= progress.number:
            return False
        return number > progress.number + 1 or decode_batch(body, number=number, key=key).nonce not in progress.pending
    raise Unavailable("the appointments on the bucket changed each time that they were read")


async def _last_after(bucket: ObjectStore, number: int) -> int | None:
    """Returns the number of the second batch after `number`, or of the only one; None where there is none."""
    page = await bucket.list(APPOINTMENTS, start_after=appointments_key(number), limit=2)
    later = [found for info in page.objects if (found := parse_appointments_key(info.key)) is not None]
    return later[-1] if later else None


async def _progress(metadata: MetadataStore, layout: KeyLayout) -> Progress:
    return decode_progress(await metadata.get(layout.appointments), key=layout.appointments)
