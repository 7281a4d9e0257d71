"""One of several changes that a request asks for: each is refused, and audited, on its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.access.authorization import acting
from gateway.access.guard import AccessGuard
from gateway.kafka.call import KafkaCall
from metadata.errors import TidelogError


@contextmanager
def one_change(guard: AccessGuard | None, call: KafkaCall, *, validate_only: bool = False) -> Iterator[None]:
    """Holds the body to what the caller may do, and tells the audit log how this change ended.

    The audit log then has no line for the whole request: its changes may end differently.
    """
    whole = call.authorized
    if guard is None or whole is None:
        yield
        return
    whole.note_told()
    part = whole.part()
    part.validate_only = validate_only
    failure = "INTERNAL"
    try:
        with acting(part):
            yield
        failure = ""
    except TidelogError as error:
        failure = error.code
        raise
    finally:
        guard.ended(part, failure)
