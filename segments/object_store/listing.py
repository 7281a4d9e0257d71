"""All objects under a prefix, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from segments.object_store.interface import ObjectInfo, ObjectStore


async def objects_under(store: ObjectStore, prefix: str) -> AsyncIterator[ObjectInfo]:
    """In ascending byte order of their keys. What is created or deleted meanwhile may be seen or not."""
    start_after = ""
    while True:
        page = await store.list(prefix, start_after=start_after)
        for found in page.objects:
            yield found
        if not page.more:
            return
        start_after = page.objects[-1].key
