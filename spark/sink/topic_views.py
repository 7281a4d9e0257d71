"""Decides which topic of a name is the present one, from what several brokers say. Pure.

A broker that lags describes a topic that was deleted since, or none. The leader epochs of a topic begin above those of all topics
that were deleted before it (metadata/topics/registry.py), so they show which of two descriptions is newer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

# Brokers whose descriptions of a topic must agree, where there are as many.
AGREEING_MIN: Final = 2


class TopicView(NamedTuple):
    """The description of a topic by one broker."""

    # Empty if the broker knows no topic of the name.
    topic_id: str
    # The newest of its partitions; -1 if none has a leader, or there is no topic.
    leader_epoch: int = -1


def present_topic(views: Sequence[TopicView], *, is_complete: bool) -> str | None:
    """Returns the id of the present topic, empty if there is none; None as long as the views, one of each broker, do not tell.

    `is_complete`: whether no other broker can be asked.
    """
    newest = max((view.leader_epoch for view in views), default=-1)
    newest_ids = {view.topic_id for view in views if view.leader_epoch == newest}
    # A topic with leaders, all of older epochs, is a former one. One without leaders may be former, or was made a moment ago.
    left = [view.topic_id for view in views if view.leader_epoch < 0 or view.topic_id in newest_ids]
    agreed = [topic_id for topic_id, count in Counter(left).items() if count >= AGREEING_MIN]
    if not agreed and is_complete:
        agreed = list(dict.fromkeys(left))
    if len(agreed) != 1 or (agreed[0] and agreed[0] not in newest_ids):
        return None
    return agreed[0]
