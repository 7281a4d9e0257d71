"""Rules of routing that a run breaks on purpose, to show that the checker would notice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any
from unittest.mock import patch

from gateway.routed_log import RoutedLog
from metadata.model import ProducerId, TopicPartition
from segments.producer_state import SequencedBatch


class BrokenRouteRule(Enum):
    NOTHING = "nothing"
    OTHERS_NOT_ASKED = "others-not-asked"
    """A request with an Idempotency-Key is planned without a question to the leaders of other partitions."""


@contextlib.contextmanager
def in_force(rule: BrokenRouteRule) -> Iterator[None]:
    """Breaks the rule everywhere in this process."""
    with contextlib.ExitStack() as patches:
        for target, name, broken in _patches(rule):
            patches.enter_context(patch.object(target, name, broken))
        yield


def _patches(rule: BrokenRouteRule) -> list[tuple[Any, str, Callable[..., Any]]]:
    match rule:
        case BrokenRouteRule.NOTHING:
            return []
        case BrokenRouteRule.OTHERS_NOT_ASKED:
            return [(RoutedLog, "written_elsewhere", _nothing_written)]


async def _nothing_written(
    self: RoutedLog, partitions: Iterable[TopicPartition], producer_id: ProducerId
) -> dict[TopicPartition, SequencedBatch]:
    return {}
