"""All pages: links lead to files and headings that exist, and what no test runs is at least well-formed."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import Block, Command, blocks_of, commands_of, shows
from tests.docs.test_guides import PAGES
from tests.kit.servers import ROOT
from tests.kit.tidelog.command_line import fault_of_command
from tests.test_architecture import files

FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)
CHAINED = re.compile(r"\s(?:&&|\|\||\|)\s|;\s|\bdo\s|\bthen\s")


def markdown() -> list[str]:
    return [path for path in files() if path.endswith(".md")]


@cache
def prose(page: str) -> str:
    """The text of a page without its fenced blocks."""
    return FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))


@cache
def anchors(page: str) -> frozenset[str]:
    """Names of the page's headings in addresses, as GitHub and the site make them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in HEADING.findall(prose(page)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return frozenset(names)


def broken_links(page: str) -> Iterator[str]:
    for target, anchor in LINK.findall(CODE.sub("", prose(page))):
        path = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page
        if not (ROOT / path).is_file():
            yield f"{page}: {target}"
        elif anchor and path.endswith(".md") and anchor not in anchors(path):
            yield f"{page}: {target}#{anchor}"


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert [link for page in markdown() for link in broken_links(page)] == []


def test_lists_stand_apart_from_the_paragraph_above_them() -> None:
    """GitHub does not need the empty line, and the site does."""
    glued = re.compile(r"^(?!\s*(?:[-*>|#]|\d+\.)\s)(?!\s{2,})(?!<!--)\S.*\n(?:- |1\. ).*", re.MULTILINE)
    assert [f"{page}: {found}" for page in PAGES for found in glued.findall(prose(page))] == []


def test_every_guide_begins_with_what_its_reader_can_do_after_it() -> None:
    for page in (page for page in PAGES if page != "README.md"):
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# "), page
        assert lines[2].startswith("After this page "), page


def all_blocks() -> list[Block]:
    runbook = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "runbook").glob("*.md"))
    return [block for page in [*PAGES, *runbook] for block in blocks_of(page, (ROOT / page).read_text(encoding="utf-8"))]


def test_blocks_of_data_are_well_formed() -> None:
    checks: dict[str, Callable[[str], object]] = {"json": json.loads, "yaml": yaml.safe_load}
    for block in all_blocks():
        if block.language in checks:
            checks[block.language](block.text)


def test_programs_that_do_not_run_are_at_least_python() -> None:
    for block in all_blocks():
        if block.language == "python":
            ast.parse(block.text)


def test_blocks_that_do_not_run_say_why_or_by_which_test() -> None:
    for block in all_blocks():
        if block.mark == "checked":
            assert len(block.reason) > 10, block.where
        elif block.mark == "tested":
            assert Path(block.page).name in (ROOT / block.reason).read_text(encoding="utf-8"), block.where


def unrun() -> list[Block]:
    """Blocks of commands that no test runs."""
    return [block for block in all_blocks() if block.mark == "checked" or block.page.startswith("docs/runbook/")]


@pytest.mark.slow
def test_commands_that_do_not_run_are_written_as_the_shell_reads_them() -> None:
    for block in unrun():
        if block.language in ("console", "bash"):
            text = "\n".join(each.text for each in commands_of(block.text)) if block.language == "console" else block.text
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{block.where}: {done.stderr}"


@pytest.mark.slow
def test_commands_that_do_not_run_name_commands_flags_targets_and_modules_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    faults = []
    for block in unrun():
        lines = [each.text for each in commands_of(block.text)] if block.language == "console" else block.text.splitlines()
        for part in (part.strip() for line in lines for part in CHAINED.split(line.replace(" -- ", " && "))):
            if part.startswith("tidelog ") and (fault := fault_of_command(part.removesuffix("&"))):
                faults.append(f"{block.where}: {fault}")
            if found := re.match(r"make ([a-z-]+)", part):
                assert found[1] in targets, block.where
            if found := re.match(r"(?:\S*/)?python3? -m ([\w.]+)", part):
                assert importlib.util.find_spec(found[1]) is not None, block.where
    assert faults == []


# ── the reading of pages itself ─────────────────────────────────────────────────────────────────────────────────────────

PAGE = """
# A page

<!-- first:
$ tidelog dev
-->
<!-- endless -->
```console
$ tidelog topic create orders \\
      --partitions 6   # six
created orders
$ # a comment
$ echo '# no comment'
```

<!-- checked: it needs a cloud -->
```bash
make it
```

1. An item

    ```python
    print(1)
    ```
"""


def test_blocks_know_their_language_their_line_and_what_stands_above_them() -> None:
    console, bash, python = blocks_of("p.md", PAGE)
    assert (console.where, console.language, console.mark, console.first) == ("p.md:8", "console", "endless", "$ tidelog dev")
    assert (bash.mark, bash.reason, bash.text) == ("checked", "it needs a cloud", "make it\n")
    assert (python.mark, python.text) == ("", "print(1)\n")


def test_commands_have_no_comments_and_keep_the_output_that_is_shown() -> None:
    console, *_ = blocks_of("p.md", PAGE)
    assert commands_of(console.text) == [
        Command("tidelog topic create orders        --partitions 6", ("created orders",)),
        Command("echo '# no comment'"),
    ]
    assert shlex.split(commands_of(console.text)[0].text)[-1] == "6"


def test_output_may_have_more_lines_than_a_page_shows_and_any_text_for_an_ellipsis() -> None:
    output = "one\ntwo 2.5 s\nthree\n"
    assert shows(("one", "two … s"), output)
    assert shows(("three",), output)
    assert not shows(("two … s", "one"), output)
    assert not shows(("four",), output)


def test_a_link_to_a_heading_that_is_not_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.md").write_text("# One `two`, three\n[x](#one-two-three) [y](b.md) [z](#four)\n```\n[w](c.md)\n```\n")
    monkeypatch.setattr("tests.docs.test_pages.ROOT", tmp_path)
    prose.cache_clear()
    anchors.cache_clear()
    assert list(broken_links("a.md")) == ["a.md: b.md", "a.md: #four"]
    prose.cache_clear()
    anchors.cache_clear()
