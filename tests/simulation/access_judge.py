"""Judges whether brokers serve those alone who may be served: what clients saw against the real changes of keys and ACLs. Pure.

    changes of keys and ACLs, by revision      ── what the metadata store acknowledged, and when
    when a watch of a broker brought a change  ── what the network did
    requests served, requests refused          ── what clients saw

A broker decides by its view of the metadata. The judge knows bounds of the revision of that view, and asks no broker:

    the change that was acknowledged more than age_s before the request began ─┐
    the change that the network had brought to the broker before that ─────────┴▶ oldest … newest ◀── the last one before the answer

A request that no revision of these allows must not be served. One that all of them allow must not be refused as Denied. A leader
that got a forwarded append after the network had brought it the revocation of the key must not acknowledge the append.

A call that lasts (a long poll, a stream) is judged at each delivery: it ends when its caller may go on no longer. It may lag by
LASTING_S, and by the time for which its process was stopped (SIGSTOP) just before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from metadata.access.acl import Operation
from metadata.model import Revision
from tests.simulation.history_checker import Invariant, Violation

# What a delivery of a call that lasts needs to get from the broker's check to its client.
LASTING_S = 0.1
# Of the time, for sums of floats.
ROUNDING_S = 1e-6


class Right(NamedTuple):
    principal: str
    operation: Operation
    topic: str


class Span(NamedTuple):
    """Revisions at which a key or a right held: from `given`, up to and without `taken`."""

    given: Revision
    taken: float = inf

    def meets(self, oldest: Revision, newest: Revision) -> bool:
        """Whether it held at some revision of these."""
        return self.given <= newest and self.taken > oldest

    def covers(self, oldest: Revision, newest: Revision) -> bool:
        """Whether it held at all of these."""
        return self.given <= oldest and self.taken > newest


class Moment(NamedTuple):
    at_s: float
    revision: Revision


class Asked(NamedTuple):
    """A request that was served, or refused as Denied; or one delivery of a call that lasts."""

    client: str
    # The process that the client asked.
    broker: str
    key_id: str
    right: Right
    # When the client sent the request; of a delivery, when it came.
    began_s: float
    # When the client had the answer.
    ended_s: float
    lasts: bool = False
    # The code of the refusal; empty where the request was served.
    refused: str = ""
    # Of an append that was acknowledged, (partition, offset).
    position: tuple[str, int] | None = None


@dataclass(slots=True)
class BrokerFacts:
    """What the network and the machine did to one process."""

    # When a watch of API keys, and of ACLs, brought which revision.
    keys: list[Moment] = field(default_factory=list)
    acls: list[Moment] = field(default_factory=list)
    # From when to when it was stopped.
    frozen: list[tuple[float, float]] = field(default_factory=list)


@dataclass(slots=True)
class AccessFacts:
    # How old the view of a broker may be: access_max_age_ms.
    age_s: float
    keys: dict[str, Span] = field(default_factory=dict)
    rights: dict[Right, list[Span]] = field(default_factory=lambda: defaultdict(list))
    # When each change was acknowledged, in order.
    changes: list[Moment] = field(default_factory=list)
    brokers: dict[str, BrokerFacts] = field(default_factory=lambda: defaultdict(BrokerFacts))
    asked: list[Asked] = field(default_factory=list)


def judge(facts: AccessFacts, written_by: Callable[[str, int], str | None]) -> list[Violation]:
    """Returns what breaks `authorized`. `written_by`: the process that wrote (partition, offset), where that is known."""
    return [Violation(Invariant.AUTHORIZED, evidence) for asked in facts.asked for evidence in _broken(facts, asked, written_by)]


def _broken(facts: AccessFacts, asked: Asked, written_by: Callable[[str, int], str | None]) -> Iterable[str]:
    broker = facts.brokers[asked.broker]
    since_s = _since_s(asked, broker.frozen)
    newest = _last(facts.changes, asked.ended_s, inclusive=True)
    bounded = _last(facts.changes, since_s - facts.age_s - ROUNDING_S)
    key, rights = facts.keys.get(asked.key_id), facts.rights.get(asked.right, [])
    who = f"{asked.client} with key {asked.key_id} ({asked.right.principal})"
    did = f"{asked.right.operation} {asked.right.topic} at {asked.broker}, from {asked.began_s:.3f} to {asked.ended_s:.3f} s"
    held: dict[str, Sequence[Span]] = {"key": [key] if key is not None else [], "right": rights}
    brought = {"key": broker.keys, "right": broker.acls}
    is_certain = True
    for what, spans in held.items():
        oldest = max(bounded, _last(brought[what], since_s))
        if not asked.refused and not any(span.meets(oldest, newest) for span in spans):
            yield f"{who} was let {did}: its {what} held at no revision of {oldest} to {newest} ({_reported(spans)})"
        is_certain &= any(span.covers(oldest, newest) for span in spans)
    if asked.refused and is_certain:
        yield f"{who} was refused to {did} ({asked.refused}), and both its key and its right held all the time"
    if asked.position is not None and key is not None and (writer := written_by(*asked.position)) is not None:
        revision = _last(facts.brokers[writer].keys, since_s)
        if key.taken <= revision:
            yield f"{who} was let {did}: {writer} appended it, to which the revocation {key.taken} had been brought ({revision})"


def _since_s(asked: Asked, frozen: Sequence[tuple[float, float]]) -> float:
    """The earliest moment of the check that allowed it."""
    if not asked.lasts:
        return asked.began_s
    since_s = asked.began_s - LASTING_S
    return min([since_s, *(stopped_s for stopped_s, woken_s in frozen if stopped_s < asked.began_s and woken_s >= since_s)])


def _last(moments: Sequence[Moment], at_s: float, *, inclusive: bool = False) -> Revision:
    """The revision of the last moment before `at_s`; 0 where there was none."""
    bisect = bisect_right if inclusive else bisect_left
    index = bisect(moments, at_s, key=lambda moment: moment.at_s)
    return moments[index - 1].revision if index else Revision(0)


def _reported(spans: Sequence[Span]) -> str:
    return ", ".join(f"{span.given} to {span.taken}" for span in spans) or "it never held"
