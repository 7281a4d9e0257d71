"""`tidelog` as a process that is forked from a server which has imported all of it: it starts in milliseconds, not in a second.

    the test's process ── arguments, environment; descriptors of stdin, stdout, stderr ──▶ server: no thread, no event loop
          ▲                                                                                   │ forks twice
          └───────────────────── its child, as if it had forked it itself ─────────────────── the command

To its starter, it is a `subprocess.Popen` like any other: pipes, signals, exit codes. Not for tests of what is
imported, or of what happens until it is.

Elsewhere than on Linux, which alone can hand a child over (prctl(2), PR_SET_CHILD_SUBREAPER), it is started as users start it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, AnyStr, Final, Literal

from tidelog.testing.broker_process import BrokerProcess

ROOT: Final = Path(__file__).parents[2]
# How users start it, as far as it is always the same.
TIDELOG: Final = (sys.executable, "-m", "tidelog.cli.main")
# Arguments and environment, in one packet.
REQUEST_BYTES_MAX: Final = 200_000
PR_SET_CHILD_SUBREAPER: Final = 36
# By the server: what commands and brokers import, and what the first of a process makes for its listeners.
IMPORTED: Final = (
    "compaction.compactor",
    "metadata.store.etcd.store",
    "segments.object_store.s3.store",
    "tests.crash.fork_server",
    "tidelog.cli.commands",
    "tidelog.client",
)


class TidelogProcess(subprocess.Popen[AnyStr]):
    """`TidelogProcess([*TIDELOG, "dev", …], …)`, with all that Popen takes but what it would do between fork and exec."""

    if sys.platform == "linux":

        def _execute_child(
            self,
            args: Sequence[str],
            executable: None,
            preexec_fn: None,
            close_fds: bool,
            pass_fds: tuple[()],
            cwd: str | os.PathLike[str] | None,
            env: Mapping[str, str] | None,
            startupinfo: None,
            creationflags: int,
            shell: bool,
            p2cread: int,
            p2cwrite: int,
            c2pread: int,
            c2pwrite: int,
            errread: int,
            errwrite: int,
            *others: Any,
        ) -> None:
            """In the place of Popen's own (of Python 3.11), which forks and executes."""
            assert tuple(args[: len(TIDELOG)]) == TIDELOG, f"{args[0]} is not tidelog"
            request = {
                "arguments": list(args[len(TIDELOG) :]),
                "cwd": str(cwd or Path.cwd()),
                "environment": dict(env or os.environ),
                "process_group": others[-1],
            }
            given = [own if theirs == -1 else theirs for own, theirs in enumerate((p2cread, c2pwrite, errwrite))]
            self.pid = _SERVER.fork(request, given)
            self._child_created: bool = True
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def run_tidelog(
    arguments: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """To its end, as subprocess.run does it; what it wrote is in the answer."""
    with TidelogProcess[bytes]([*TIDELOG, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


class ForkedBroker(BrokerProcess):
    """A broker as a child process, forked: 0.3 s of a core in place of 2."""

    def __init__(self, directory: Path, *, flags: Sequence[str] = (), command: Literal["dev", "serve"] = "dev") -> None:
        super().__init__(directory, flags=flags, command=command, start_process=TidelogProcess)


class _Server:
    """Of this process; the first command starts it, and it ends with this process."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._ours: socket.socket | None = None

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """The process id of the command, which is a child of this process."""
        with self._asking:
            if self._ours is None:
                self._ours = self._start()
            packet = json.dumps(request).encode()
            assert len(packet) <= REQUEST_BYTES_MAX, "the environment is too large to be sent in one packet"
            _adopt_orphans(True)
            try:
                socket.send_fds(self._ours, [packet], descriptors)
                answer = self._ours.recv(32)
            finally:
                _adopt_orphans(False)
        assert answer, "the server that forks commands has ended"
        return int(answer)

    def _start(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            command = [sys.executable, "-m", "tests.kit.forked_tidelog", str(its.fileno())]
            server = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[its.fileno()]
            )

        def end() -> None:
            ours.close()
            server.wait()

        atexit.register(end)
        return ours


_SERVER = _Server()


def _adopt_orphans(yes: bool) -> None:
    """Whether descendants whose parent ends become children of this process. Only for a moment: others' orphans are not ours."""
    failed = ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)
    assert failed == 0, os.strerror(ctypes.get_errno())


# ── the server ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def serve(asked: socket.socket) -> list[str] | None:
    """Forks what it is asked for. Answers None when no client is left, and in each command its arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, and for what they started
    while True:
        packet, descriptors, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 3)
        if not packet:
            return None
        request = json.loads(packet)
        reported, writer = os.pipe()
        if (between := os.fork()) == 0:
            if (command := os.fork()) == 0:
                break
            if request["process_group"] >= 0:
                os.setpgid(command, request["process_group"])
            os.write(writer, str(command).encode())
            os._exit(0)
        for descriptor in (writer, *descriptors):
            os.close(descriptor)
        number = os.read(reported, 32)
        os.close(reported)
        os.waitpid(between, 0)  # from now on it is a child of the caller
        with suppress(BrokenPipeError):
            asked.send(number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
    for descriptor in (reported, writer, *descriptors):
        os.close(descriptor)
    asked.close()
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    return list(request["arguments"])


def _import_everything() -> None:
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what all share is not written to by anybody's collector


def _end(code: int) -> None:
    """As the interpreter ends, but for the tearing down of all modules, which takes longer than most commands. Returns where
    something can't be written any more: what is printed then, the interpreter prints itself.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as multiprocessing does
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _import_everything()
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        from tidelog.cli.main import main

        sys.argv = ["tidelog", *arguments]
        try:
            main()
        except SystemExit as ended:
            if isinstance(ended.code, int):
                _end(ended.code)
            raise
