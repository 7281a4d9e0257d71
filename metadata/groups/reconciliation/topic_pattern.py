r"""Matches names of topics with a regular expression, in time that grows with the pattern times the name. Pure.

    a literal, \ before a special character      [a-z_] [^0-9]      \d \D \w \W \s \S      .
    (…) (?:…)      |      * + ? {n} {n,} {n,m}, each also lazy      ^ $ \A \z at any place

This is RE2's syntax without flags, Unicode classes, POSIX classes, word boundaries and named groups. They are refused, as are
look-arounds and back-references, which RE2 does not have either. The whole name must match, as in Kafka.

A pattern becomes an automaton without backtracking: a hostile pattern costs as little as any other. Source: Thompson, Regular
Expression Search Algorithm, 1968.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from metadata.errors import InvalidRegularExpression

PATTERN_CHARACTERS_MAX: Final = 1_000
# States of the automaton: repetitions multiply them.
STATES_MAX: Final = 2_000
# Steps of one pattern that are remembered.
STEPS_MAX: Final = 1_000
# RE2's own bound on the number in {n,m}.
REPEAT_MAX: Final = 1_000
DEPTH_MAX: Final = 50

_Test = Callable[[str], bool]
_CLASSES: Final[dict[str, _Test]] = {
    "d": lambda c: "0" <= c <= "9",
    "w": lambda c: c == "_" or (c.isascii() and c.isalnum()),
    "s": lambda c: c in " \t\n\f\r",
}
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}


class _Node:
    """One state: it takes a character that passes `test`, or goes on without one where `test` is None."""

    __slots__ = ("at", "next", "test")

    def __init__(self, test: _Test | None = None, at: str = "") -> None:
        self.test = test
        # "start" or "end" where the state is an anchor.
        self.at = at
        self.next: list[_Node] = []


class TopicPattern:
    """One pattern. Raises InvalidRegularExpression."""

    def __init__(self, pattern: str) -> None:
        first, self._last = _Parser(pattern).parsed()
        self._first = _closed([first], is_start=True)
        # What follows a set of states by a character: sets that have been met need not be computed again.
        self._steps: dict[tuple[frozenset[_Node], str], frozenset[_Node]] = {}

    def matches(self, name: str) -> bool:
        """Returns whether the whole name matches."""
        states = self._first
        for character in name:
            step = states, character
            if (after := self._steps.get(step)) is None:
                after = _closed(each for state in states if state.test is not None and state.test(character) for each in state.next)
                if len(self._steps) >= STEPS_MAX:
                    self._steps.clear()
                self._steps[step] = after
            if not after:
                return False
            states = after
        return self._last in _closed(states, is_start=not name, is_end=True)

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """Returns the names that match."""
        return frozenset(filter(self.matches, names))


def _closed(states: Iterable[_Node], *, is_start: bool = False, is_end: bool = False) -> frozenset[_Node]:
    """Returns the states that are reached without a character. An anchor that does not hold (yet) leads nowhere."""
    found: set[_Node] = set()
    waiting = list(states)
    while waiting:
        state = waiting.pop()
        if state in found:
            continue
        found.add(state)
        holds = is_start if state.at == "start" else is_end if state.at == "end" else True
        if state.test is None and holds:
            waiting += state.next
    return frozenset(found)


_Part = tuple[_Node, _Node]


class _Parser:
    """Reads a pattern by recursive descent, and builds its automaton."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._position = 0
        self._depth = 0
        self._states = 0
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise self._wrong(f"it has {len(pattern)} characters; {PATTERN_CHARACTERS_MAX} is the most")

    def parsed(self) -> _Part:
        part = self._alternatives()
        if self._position < len(self._text):
            raise self._wrong("a ) has no (")
        return part

    def _alternatives(self) -> _Part:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._wrong(f"groups are nested deeper than {DEPTH_MAX}")
        first, last = self._node(), self._node()
        while True:
            start, end = self._sequence()
            first.next.append(start)
            end.next.append(last)
            if not self._takes("|"):
                self._depth -= 1
                return first, last

    def _sequence(self) -> _Part:
        start = end = self._node()
        while self._position < len(self._text) and self._text[self._position] not in "|)":
            part_start, part_end = self._repeated()
            end.next.append(part_start)
            end = part_end
        return start, end

    def _repeated(self) -> _Part:
        begun = self._position
        part = self._atom()
        ended = self._position
        bounds = self._bounds()
        if bounds is None:
            return part
        if self._position < len(self._text) and self._text[self._position] in "*+?":
            raise self._wrong("a repetition is repeated")
        low, high = bounds
        start = end = self._node()
        last = self._node()

        def copy() -> _Part:
            """Builds the same part once more."""
            after, self._position = self._position, begun
            made = self._atom()
            assert self._position == ended
            self._position = after
            return made

        copies = max(low, 1 if high is None else high)
        parts = [part, *(copy() for _ in range(copies - 1))] if copies else []
        for number, (part_start, part_end) in enumerate(parts):
            if number >= low:
                end.next.append(last)
            end.next.append(part_start)
            end = self._node()
            part_end.next.append(end)
            if high is None and number == len(parts) - 1:
                part_end.next.append(part_start)
        end.next.append(last)
        return start, last

    def _bounds(self) -> tuple[int, int | None] | None:
        """Returns how often the part before may come, the second number None where it has no end; None without a repetition."""
        for mark, found in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(mark):
                self._takes("?")  # lazy: which match is found first means nothing here
                return found
        if self._position >= len(self._text) or self._text[self._position] != "{":
            return None
        inner, closing, _ = self._text[self._position + 1 :].partition("}")
        low, comma, high = inner.partition(",")
        if not closing or not _is_number(low) or (high and not _is_number(high)):
            raise self._wrong("a { begins no repetition", position=self._position)
        self._position += len(inner) + 2
        self._takes("?")
        least = int(low)
        most = least if not comma else int(high) if high else None
        if least > REPEAT_MAX or (most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise self._wrong(f"a repetition needs 0 ≤ n ≤ m ≤ {REPEAT_MAX}")
        return least, most

    def _atom(self) -> _Part:
        character = self._text[self._position]
        self._position += 1
        if character == "(":
            if self._takes("?") and not self._takes(":"):
                raise self._wrong("of the groups that begin with (? only (?: is supported")
            part = self._alternatives()
            if not self._takes(")"):
                raise self._wrong("a ( has no )")
            return part
        if character == "[":
            return self._one(self._set())
        if character == ".":
            return self._one(lambda c: c != "\n")
        if character in "^$":
            return self._anchor("start" if character == "^" else "end")
        if character in "*+?{":
            raise self._wrong("a repetition follows nothing")
        if character != "\\":
            return self._one(lambda c: c == character)
        escaped = self._escaped()
        if escaped in "Az":
            return self._anchor("start" if escaped == "A" else "end")
        return self._one(self._test_of(escaped))

    def _escaped(self) -> str:
        if self._position >= len(self._text):
            raise self._wrong("it ends in a backslash")
        self._position += 1
        return self._text[self._position - 1]

    def _test_of(self, escaped: str) -> _Test:
        if (test := _CLASSES.get(escaped.lower())) is not None:
            return test if escaped.islower() else lambda c: not test(c)
        literal = self._literal(escaped)
        return lambda c: c == literal

    def _literal(self, escaped: str) -> str:
        if escaped in _CONTROLS:
            return _CONTROLS[escaped]
        if escaped.isalnum() or ord(escaped) > 0x7F:
            raise self._wrong(f"\\{escaped} is not supported")
        return escaped

    def _set(self) -> _Test:
        negated = self._takes("^")
        tests: list[_Test] = []
        first = True
        while first or not self._takes("]"):
            if self._position >= len(self._text):
                raise self._wrong("a [ has no ]")
            if self._text.startswith("[:", self._position):
                raise self._wrong("[: begins a class that is not supported")
            first = False
            low = self._member_of_set()
            if callable(low):
                tests.append(low)
                continue
            high = low
            if self._text.startswith("-", self._position) and not self._text.startswith("-]", self._position):
                self._position += 1
                end = self._member_of_set()
                if callable(end) or end < low:
                    raise self._wrong("a range in [ ] has no end, or ends before it begins")
                high = end
            tests.append(_range_test(low, high))
        return (lambda c: not any(test(c) for test in tests)) if negated else (lambda c: any(test(c) for test in tests))

    def _member_of_set(self) -> str | _Test:
        if self._position >= len(self._text):
            raise self._wrong("a [ has no ]")
        character = self._text[self._position]
        self._position += 1
        if character != "\\":
            return character
        escaped = self._escaped()
        return self._test_of(escaped) if escaped.lower() in _CLASSES else self._literal(escaped)

    def _one(self, test: _Test) -> _Part:
        start, end = self._node(test), self._node()
        start.next.append(end)
        return start, end

    def _anchor(self, at: str) -> _Part:
        node = self._node(None, at)
        return node, node

    def _node(self, test: _Test | None = None, at: str = "") -> _Node:
        self._states += 1
        if self._states > STATES_MAX:
            raise self._wrong("its repetitions are too large")
        return _Node(test, at)

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._position):
            return False
        self._position += len(text)
        return True

    def _wrong(self, why: str, *, position: int | None = None) -> InvalidRegularExpression:
        character = 1 + (self._position if position is None else position)
        return InvalidRegularExpression(
            f"the pattern of topics is not supported: {why} (at character {character})",
            field="subscribed_topic_regex",
        )


def _range_test(low: str, high: str) -> _Test:
    return lambda c: low <= c <= high


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4
