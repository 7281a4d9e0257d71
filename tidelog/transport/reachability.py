"""Tracks which brokers answer: selects the one to ask next, and the leaders reached through another one. Pure.

    a broker did not answer             it is asked last, until it answers again: `choose`
    it says no more than that it can't  the same, but it is not silent
    its answer does not help            it may know no better: another one is asked next, in turn
    a leader that can't be connected    it gets a detour: another broker, which forwards, until a connection to the leader stands
    that other broker can't be, either  another detour

A detour stays as it is while it works: partitions that went from one broker to the next with each answer would never come to rest.
Invariant: what is remembered is of brokers that are there (`keep`), and of those alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class Reachability:
    """Tracks which brokers answer, and selects the one to ask. `now_s` is from any monotonic clock."""

    def __init__(self) -> None:
        # By address: when it last gave no answer, or none but that it can't; only those that have not answered since.
        self._failed_s: dict[str, float] = {}
        # Those of them that said nothing at all.
        self._silent: set[str] = set()
        # By address: when its answer last did not help; only those whose last answer was such a one.
        self._doubted_s: dict[str, float] = {}
        # Where no connection could be made, and none has stood since.
        self._unconnected: set[str] = set()
        # By the leader's address: the broker that forwards to it.
        self._detours: dict[str, str] = {}

    # ── what was met ──

    def answered(self, address: str) -> None:
        self._failed_s.pop(address, None)
        self._silent.discard(address)

    def gave_no_answer(self, address: str, now_s: float) -> None:
        self._failed_s[address] = now_s
        self._silent.add(address)

    def spoke(self, address: str) -> None:
        """Notes that the broker answered, whatever the answer."""
        self._silent.discard(address)

    def answered_newer(self, address: str) -> None:
        self._doubted_s.pop(address, None)

    def answered_older(self, address: str, now_s: float) -> None:
        """Notes that a broker answers from old metadata: it may be cut off from etcd, and others may know better."""
        self._doubted_s[address] = now_s

    def connected(self, address: str) -> bool:
        """Notes a connection. Returns whether the broker's partitions used a detour until now."""
        self._unconnected.discard(address)
        return self._detours.pop(address, None) is not None

    def can_not_connect(self, address: str, now_s: float) -> None:
        self.gave_no_answer(address, now_s)
        self._unconnected.add(address)

    def keep(self, addresses: Collection[str]) -> None:
        """Forgets all brokers but these."""
        self._failed_s = {address: at_s for address, at_s in self._failed_s.items() if address in addresses}
        self._doubted_s = {address: at_s for address, at_s in self._doubted_s.items() if address in addresses}
        self._silent.intersection_update(addresses)
        self._unconnected.intersection_update(addresses)
        self._detours = {leader: via for leader, via in self._detours.items() if leader in addresses and via in addresses}

    # ── what follows ──

    def choose(self, addresses: Sequence[str]) -> str:
        """Returns the first one that answers, as far as is known; else the one whose silence is the longest ago.

        Of those that answer, one with a doubtful answer comes behind the others, the latest last.
        """
        never = float("-inf")
        return min(addresses, key=lambda address: (self._failed_s.get(address, never), self._doubted_s.get(address, never)))

    def none_answers(self, addresses: Collection[str]) -> bool:
        return all(address in self._failed_s for address in addresses)

    def all_are_silent(self, addresses: Collection[str]) -> bool:
        return self._silent.issuperset(addresses)

    def is_unconnected(self, address: str) -> bool:
        return address in self._unconnected

    def is_detour(self, address: str) -> bool:
        """Returns whether requests for another broker's partitions go here."""
        return address in self._detours.values()

    def has_detour(self, leader: str) -> bool:
        """Returns whether requests for its partitions go to another broker."""
        return leader in self._detours

    def way_to(self, leader: str, others: Sequence[str]) -> str:
        """Returns the broker for requests to this leader's partitions: itself, or one of the others, which forwards."""
        if leader not in self._unconnected:
            return leader
        via = self._detours.get(leader)
        if via is None or via in self._unconnected or via not in others:
            reached = [address for address in others if address != leader and address not in self._unconnected]
            if not reached:
                return leader
            via = self._detours[leader] = self.choose(reached)
        return via
