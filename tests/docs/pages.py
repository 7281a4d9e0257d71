"""The blocks of code of a page of Markdown: their language, their commands, and what a comment above them says of tests. Pure.

    <!-- checked: WHY -->     the next block runs on no bare machine: its syntax, commands, flags and targets are checked
    <!-- tested: PATH -->     the next block is run by that test
    <!-- endless -->          the next block goes on until it is ended; its first output counts
    <!-- first:               commands that a test runs before the next block, and that no reader sees
    $ COMMAND
    -->

All other blocks of `console`, `bash` and `python` run, in the order of the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import dedent
from typing import Final

FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMENT: Final = re.compile(r"<!-- (checked|tested|endless|first)(?::\s*((?:(?!-->).)*?))?\s*-->\s*\Z", re.DOTALL)
RUN: Final = ("console", "bash", "python")
# Prompts, and what begins a comment of the shell.
PROMPT: Final = "$ "
SHELL_COMMENT: Final = re.compile(r"(?:^|\s+)#(?:\s.*)?$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page, and what the page says of how it is tested."""

    page: str
    line: int
    language: str
    text: str
    # "checked", "tested", "endless", or "" for a block that runs.
    mark: str = ""
    reason: str = ""
    # Commands that come before it in a test.
    first: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command behind a prompt, without its comment, and the lines that the page shows as its output."""

    text: str
    output: tuple[str, ...] = ()


def blocks_of(page: str, text: str) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    found = []
    end = 0
    for fence in FENCE.finditer(text):
        mark = reason = first = ""
        between = text[end : fence.start()]
        while comment := COMMENT.search(between):
            if comment[1] == "first":
                first = comment[2]
            else:
                mark, reason = comment[1], comment[2] or ""
            between = between[: comment.start()]
        end = fence.end()
        line = text.count("\n", 0, fence.start()) + 1
        found.append(Block(page, line, fence[2], dedent(fence[3]), mark, reason, first))
    return found


def commands_of(text: str) -> list[Command]:
    """Returns the commands of a block of `console`. A line that ends in a backslash goes on in the next one."""
    found: list[Command] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith(PROMPT):
            command = SHELL_COMMENT.sub("", line.removeprefix(PROMPT)).strip()
            found.append(Command(command))
        elif found:
            found[-1] = Command(found[-1].text, (*found[-1].output, line))
    return [command for command in found if command.text]


def shows(expected: tuple[str, ...], output: str) -> bool:
    """Whether the output has these lines, in this order and perhaps with others between; `…` stands for any text."""
    lines = iter(output.splitlines())
    for wanted in expected:
        pattern = ".*".join(re.escape(part) for part in wanted.strip().split("…"))
        if not any(re.search(pattern, line) for line in lines):
            return False
    return True
