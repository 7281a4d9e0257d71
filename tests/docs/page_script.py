"""The shell script that does what a page shows, in the order of the page, as a reader with one machine would. Pure.

Servers run in the background until the page ends. Each command leaves its output in `out-N`. The first that fails ends the script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.docs.pages import Block, Command, commands_of

# Ports of the examples, each of which a test replaces by a free one.
PORTS: Final = (8080, 8081, 8082, 8083, 9090, 9091, 9092, 9093, 2379, 2380)
PORT: Final = re.compile(rf"(?<![\d.-])({'|'.join(map(str, PORTS))})(?!\d)")
SERVERS: Final = ("tidelog dev", "tidelog serve", "tidelog compact", "etcd")
ENDLESS: Final = re.compile(r"^curl .*-N\b|^tidelog consume .*\s(?:-f|--follow)\b")
# In a `first` comment: ends the servers that run.
STOP: Final = "stop"

PRELUDE: Final = r"""
set -uo pipefail
pids=() groups=()
failed() { echo "FAILED $1"; for kind in out err; do echo "-- $kind"; tail -n 40 "$kind-$2"; done; exit 1; } >&2
stop() {
    for group in "${groups[@]}"; do kill -- "-$group" 2> /dev/null; done
    for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null; done
    for pid in "${pids[@]}" "${groups[@]}"; do wait "$pid" 2> /dev/null; done
    pids=() groups=()
}
trap stop EXIT
await() {  # WHERE NUMBER PID URL
    for _ in $(seq 1200); do
        curl -sfk -o /dev/null --max-time 5 "$4" && return
        kill -0 "$3" 2> /dev/null || failed "$1 (it ended)" "$2"
        sleep 0.1
    done
    failed "$1 (not ready)" "$2"
}
endless() {  # WHERE NUMBER COMMAND …
    local where=$1 number=$2; shift 2
    setsid "$@" > "out-$number" 2> "err-$number" < /dev/null &
    local pid=$!
    groups+=("$pid")
    for _ in $(seq 600); do
        [ -s "out-$number" ] && break
        kill -0 "$pid" 2> /dev/null || break
        sleep 0.1
    done
    [ -s "out-$number" ] || failed "$where (no output)" "$number"
    kill -- "-$pid"; wait "$pid" 2> /dev/null
    return 0
}
"""


@dataclass
class PageScript:
    """Collects the lines of a page's script, the files that it needs, and the outputs that the page shows."""

    ports: Mapping[int, int]
    # Texts of the page that a test replaces, such as addresses of buckets.
    replaced: Mapping[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    shown: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    _steps: int = 0

    def add(self, block: Block) -> None:
        """Adds a block, and the commands that come before it."""
        for command in commands_of(block.first):
            self._command(block, command)
        if block.mark in ("checked", "tested"):
            return
        match block.language:
            case "console":
                for command in commands_of(block.text):
                    self._command(block, command)
            case "bash":
                number = self._file(block, "sh")
                run = f"endless {shlex.quote(block.where)} {number} bash" if block.mark else "."
                self._run(block, number, f"{run} ./block-{number}.sh", redirected=not block.mark)
            case "python":
                number = self._file(block, "py")
                self._run(block, number, f"python block-{number}.py")

    @property
    def text(self) -> str:
        return PRELUDE + "\n".join(self.lines) + "\n"

    def _here(self, text: str) -> str:
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return PORT.sub(lambda found: str(self.ports[int(found[1])]), text)

    def _next(self) -> int:
        self._steps += 1
        return self._steps

    def _file(self, block: Block, ending: str) -> int:
        number = self._next()
        self.files[f"block-{number}.{ending}"] = self._here(block.text)
        return number

    def _command(self, block: Block, command: Command) -> None:
        number = self._next()
        text = self._here(command.text)
        if command.output:
            self.shown[f"out-{number}"] = (f"{block.where}: {command.text}", command.output)
        if command.text == STOP:
            self.lines.append("stop")
        elif text.startswith(SERVERS) or text.endswith(" &"):
            self._serve(block, number, text.removesuffix("&").rstrip())
        elif ENDLESS.search(text):
            self._run(block, number, f"endless {shlex.quote(block.where)} {number} {text}", redirected=False)
        else:
            self._run(block, number, text)

    def _run(self, block: Block, number: int, command: str, *, redirected: bool = True) -> None:
        where = shlex.quote(f"{block.where}: {command}")
        files = f" > out-{number} 2> err-{number} < /dev/null" if redirected else ""
        self.lines += [f"echo {where}", f"{{ {command}\n}}{files} || failed {where} {number}"]

    def _serve(self, block: Block, number: int, command: str) -> None:
        where = shlex.quote(f"{block.where}: {command}")
        self.lines += [f"echo {where}", f"{command} > out-{number} 2> err-{number} < /dev/null &", "pids+=($!)"]
        if command.startswith("etcd"):
            url = f"http://127.0.0.1:{self.ports[2379]}/health"
        else:
            listens = re.search(r"--http \S*:(\d+)", command)
            scheme = "https" if "--tls-cert-file" in command else "http"
            url = f"{scheme}://localhost:{listens[1] if listens else self.ports[8080]}/readyz"
        self.lines.append(f"await {where} {number} $! {url}")
