"""What happened in a chaos run, in numbers: from its history alone. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

from tests.chaos.group_checker import figures
from tests.chaos.history import Acknowledged, AnyEvent, Blow, Ended, Healed, Leaders, Polled, Refused, Sent, Served, Topics, Unknown


def summary(events: Sequence[AnyEvent]) -> str:
    """Some lines for people."""
    kinds = Counter(type(event) for event in events)
    sent = {event.operation: event for event in events if isinstance(event, Sent)}
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        match event:
            case Sent():
                outcomes[event.producer]["sent"] += len(event.values)
            case Acknowledged(operation=operation) | Refused(operation=operation) | Unknown(operation=operation):
                producer, count = sent[operation].producer, len(sent[operation].values)
                outcomes[producer][type(event).__name__.lower()] += count
    lines = [
        f"  {producer:17}" + "".join(f"{what} {count:,}   " for what, count in found.items())
        for producer, found in sorted(outcomes.items())
    ]
    read = Counter[str]()
    for event in events:
        if isinstance(event, Polled):
            read[event.reader] += len(event.records)
    lines += [f"  {reader:17}read {count:,}" for reader, count in sorted(read.items())]
    lines += [f"  {line}" for line in groups(events)]
    blows = Counter(event.what for event in events if isinstance(event, Blow))
    lines += [
        f"  blows: {', '.join(f'{what} {count}' for what, count in sorted(blows.items()))}",
        f"  brokers that ended by themselves: {kinds[Ended]}",
        f"  changes of leaders: {leader_changes(events)}",
        f"  lives of the topic that is made and deleted: {sum(event.lives for event in events if isinstance(event, Topics))}",
        f"  records in the log: {sum(len(event.records) for event in events if isinstance(event, Served)):,}",
        f"  {pauses(events)}",
    ]
    return "\n".join(lines)


def groups(events: Sequence[AnyEvent]) -> list[str]:
    """Two lines for each consumer group."""
    lines = []
    for group, tally in sorted(figures(events).items()):
        read = f"handed out {tally.handed_out:,}   again {tally.again:,}   by former owners {tally.by_former_owners:,}"
        lived = f"lives {tally.lives:,}   dropped {tally.dropped:,}   generations {len(tally.generations):,}"
        lines.append(f"{group:17}{read}   commits {tally.commits:,}")
        lines.append(f"{'':17}{lived}   assignments {tally.assignments:,}   longest pause {tally.pause_s:.1f} s")
    return lines


def leader_changes(events: Sequence[AnyEvent]) -> int:
    """Of all partitions: failovers and handovers."""
    known = [sum(event.epochs) for event in events if isinstance(event, Leaders)]
    return known[-1] - known[0] if known else 0


def pauses(events: Sequence[AnyEvent]) -> str:
    """The longest times without an acknowledgement while there was load, of all and of one partition."""
    until_s = next((event.time_s for event in events if isinstance(event, Healed)), 0.0)
    times: dict[int, list[float]] = defaultdict(list)
    for event in events:
        if isinstance(event, Acknowledged) and event.time_s <= until_s:
            for partition in {partition for partition, _ in event.positions}:
                times[partition].append(event.time_s)
    of_all, _ = _longest(sorted(time_s for found in times.values() for time_s in found))
    found = {partition: _longest(of_one) for partition, of_one in times.items()}
    if not found:
        return "nothing was acknowledged"
    partition = max(found, key=lambda partition: found[partition])
    length_s, from_s = found[partition]
    return (
        f"longest pause in acknowledgements: {of_all:.2f} s over all, {length_s:.2f} s in one partition "
        f"({partition}, from {from_s:.1f} s on)"
    )


def _longest(times_s: Sequence[float]) -> tuple[float, float]:
    """(length, begin) in seconds."""
    return max(((after_s - before_s, before_s) for before_s, after_s in pairwise(times_s)), default=(0.0, 0.0))
