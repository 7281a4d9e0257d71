"""Runs one of several changes of a request, which is authorized and audited by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.access.authorization import acting
from gateway.access.guard import AccessGuard
from gateway.access.permissions import RequiredAccess
from gateway.kafka.call import KafkaCall
from metadata.errors import TidelogError


@contextmanager
def one_change(
    guard: AccessGuard | None, call: KafkaCall, *, validate_only: bool = False, needs: RequiredAccess | None = None
) -> Iterator[None]:
    """Runs the body with the caller's rights for one change, and writes the outcome of that change to the audit log.

    `needs`: the access that the change requires, if it is not that of the call.

    The audit log then has no line for the whole request: its changes may end differently.
    """
    whole = call.authorized
    if guard is None or whole is None:
        yield
        return
    whole.note_logged()
    part = whole.part(needs)
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
