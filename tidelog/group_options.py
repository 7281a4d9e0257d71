"""How a member of a consumer group behaves: the options of `log.consume(…, group=…)`. Pure; checked when they are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from metadata.assignors import TopicPartitionName
from metadata.did_you_mean import did_you_mean
from metadata.errors import InvalidArgument
from metadata.member_settings import MemberSettings

PartitionsCallback = Callable[[list[TopicPartitionName]], Awaitable[None] | None]
"""A plain function or an async one, which is told partitions as (topic, number), in order."""


class GroupOptionChanges(TypedDict, total=False):
    """The keyword arguments of `consume` that need a group; a test holds them together with GroupOptions and MemberSettings."""

    auto_commit: bool
    auto_commit_interval_ms: float
    on_assigned: PartitionsCallback | None
    on_revoked: PartitionsCallback | None
    on_lost: PartitionsCallback | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    topics_interval_ms: int
    assignors: tuple[str, ...]
    instance_id: str
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    member: MemberSettings
    auto_commit: bool = True
    """Commits what was processed by itself: in the background, before a partition is given up, and when the reading ends."""
    auto_commit_interval_ms: float = 5_000.0
    on_assigned: PartitionsCallback | None = None
    """These are read from now on; `seek` counts here."""
    on_revoked: PartitionsCallback | None = None
    """These go to others as soon as it returns. What was processed is committed; `commit` still counts here."""
    on_lost: PartitionsCallback | None = None
    """These may be others' already; nothing of them can be committed."""

    def __post_init__(self) -> None:
        if not self.auto_commit_interval_ms > 0:
            raise InvalidArgument(
                f"auto_commit_interval_ms is {self.auto_commit_interval_ms}; it must be above 0",
                hint="Use auto_commit=False to commit by yourself.",
            )


def group_options(changes: dict[str, Any] | GroupOptionChanges) -> GroupOptions:
    """The defaults with these changes. Refuses names that are no options, and names the nearest that is."""
    of_member = {field.name for field in fields(MemberSettings)}
    known = of_member | {field.name for field in fields(GroupOptions)} - {"member"}
    for name in changes:
        if name not in known:
            raise InvalidArgument(
                f"consume() has no option {name!r}", hint=did_you_mean(name, known) or f"There are: {', '.join(sorted(known))}."
            )
    for_member = {name: value for name, value in changes.items() if name in of_member}
    if "assignors" in for_member and not isinstance(for_member["assignors"], str):
        for_member["assignors"] = tuple(for_member["assignors"])  # type: ignore[arg-type]  # its values are objects to mypy
    others = {name: value for name, value in changes.items() if name not in of_member}
    return GroupOptions(member=MemberSettings(**for_member), **others)  # type: ignore[arg-type]  # each value belongs to the field of its name
