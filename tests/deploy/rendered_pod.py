"""A pod of the chart as processes of this machine: the container's command, variables, mounts and user, and nothing else of ours.

    rendered pod ─▶ a root of its own, read-only: the system and Python; emptyDirs and Secrets where they are mounted
                 ─▶ the container's user, without capabilities ─▶ its command, with the variables of image and manifest alone

Where mounts are not permitted (`own_root` False), the paths of volumes are written into command and variables instead, and the rest
holds. The image's own paths are those of this checkout: its PATH is that of our virtual environment.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.deploy.chart import Object, Rendered
from tests.deploy.dockerfile import image_stages
from tests.kit.servers import ROOT, free_port

POLL_S = 0.05
PATIENCE_S = 120.0
SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/sbin", "/usr", "/dev", "/proc")
OF_ETC = (
    "ssl",
    "ld.so.cache",
    "hosts",
    "resolv.conf",
    "nsswitch.conf",
    "passwd",
    "group",
    "localtime",
    "alternatives",
    "ca-certificates",
)
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def quantity_bytes(quantity: str) -> int:
    """Returns what the kubelet makes of an amount of memory, such as 2Gi."""
    parts = re.fullmatch(r"(\d+)(Ki|Mi|Gi)?", quantity)
    assert parts is not None, f"{quantity} is no amount of memory that the chart writes"
    number, unit = parts.groups()
    return int(number) * {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}[unit]


def on_free_ports() -> Object:
    """Values with which a broker listens on ports that are free here."""
    return {"broker": {"ports": {name: free_port() for name in ("http", "grpc", "kafka", "kafkaExternal")}}}


@cache
def outsider() -> urllib.request.OpenerDirector:
    """Who asks without proxy, certificate or authority: a pod is asked twenty times a second until it is ready."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    direct = urllib.request.ProxyHandler({})  # whatever proxy the environment names
    return urllib.request.build_opener(direct, urllib.request.HTTPSHandler(context=trusting))


@cache
def mounts_are_permitted() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    tried = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return tried.returncode == 0


class RenderedPod(AbstractContextManager["RenderedPod"]):
    def __init__(
        self,
        rendered: Rendered,
        owner: str,
        directory: Path,
        *,
        name: str,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        overrides: Mapping[str, str] | None = None,
        own_root: bool | None = None,
        programs: Path = Path(sys.prefix),
    ) -> None:
        """`owner`: the Deployment or Pod; `name`: of this pod; `overrides`: variables that have to differ, for want of a DNS;
        `programs`: the virtual environment that stands for the image's."""
        self.name = name
        self.spec: Object = dict(rendered.pods)[owner]
        self.container: Object = self.spec["containers"][0]
        self._directory = directory / name
        self._secrets = secrets or {}
        self._overrides = overrides or {}
        self._programs = programs
        self._own_root = mounts_are_permitted() if own_root is None else own_root
        self._mounts = {mount["mountPath"]: self._volume(mount) for mount in self.container["volumeMounts"]}
        self._process: subprocess.Popen[bytes] | None = None

    # ── what Kubernetes does before it starts a container ────────────────────────────────────────────────────────────────

    def _volume(self, mount: Object) -> Path:
        """The directory that holds what the volume does."""
        (volume,) = (each for each in self.spec["volumes"] if each["name"] == mount["name"])
        path: Path = self._directory / "volumes" / volume["name"]
        path.mkdir(parents=True)
        user, group = self.spec["securityContext"]["runAsUser"], self.spec["securityContext"]["fsGroup"]
        if "secret" in volume:
            assert mount["readOnly"]
            held = self._secrets[volume["secret"]["secretName"]]
            paths = {each["key"]: each["path"] for each in volume["secret"].get("items", [])} or dict.fromkeys(held)
            for key, path_in in paths.items():
                file = path / (path_in or key)
                file.write_text(held[key], encoding="utf-8")
                file.chmod(volume["secret"]["defaultMode"])
        else:
            path.chmod(0o770)
        if os.geteuid() == 0:
            for each in (path, *path.iterdir()):
                os.chown(each, 0 if "secret" in volume else user, group)
        return path

    def variables(self) -> dict[str, str]:
        """Of the image, then of the manifest, whose $(NAME) are those that stand before."""
        variables = image_variables(self._programs)
        for each in self.container["env"]:
            name = each["name"]
            variables[name] = self._overrides.get(name, self._value(each, variables))
        if self._own_root:
            return variables
        ours = {"PATH"}  # which names our own programs, wherever this checkout lies: below /tmp, too
        return {name: value if name in ours else self._here(value) for name, value in variables.items()}

    def _value(self, variable: Object, before: Mapping[str, str]) -> str:
        if "value" in variable:
            return _VARIABLE.sub(lambda found: before.get(found[1], found[0]), variable["value"])
        source = variable["valueFrom"]
        if "secretKeyRef" in source:
            return self._secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        if "resourceFieldRef" in source:
            limits = self.container["resources"]["limits"]
            return str(quantity_bytes(limits[source["resourceFieldRef"]["resource"].removeprefix("limits.")]))
        return {"metadata.name": self.name, "status.podIP": "127.0.0.1", "status.hostIP": "127.0.0.1"}[
            source["fieldRef"]["fieldPath"]
        ]

    def _here(self, text: str) -> str:
        """With the paths of volumes as they are on this machine."""
        for path, volume in self._mounts.items():
            text = re.sub(rf"(?<![\w./]){re.escape(path)}(?=$|[/\"' ])", str(volume), text)
        return text

    # ── its life ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-4000:]

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def start(self) -> None:
        command = [*self.container["command"], *self.container.get("args", [])]
        if self._own_root:
            root = self._directory / "root"
            root.mkdir(exist_ok=True)
            script = "\n".join([*self._mount_commands(root), f"exec chroot {root} {shlex.join([*self._privileges(), *command])}"])
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script]
        else:
            command = [self._here(word) for word in command]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.variables()
            )

    def _mount_commands(self, root: Path) -> list[str]:
        """A new root: the system, read-only; volumes in their places; then itself read-only."""
        commands = [f"mount -t tmpfs -o mode=755 none {root}"]
        for path in SYSTEM:
            if Path(path).is_symlink():
                commands.append(f"ln -s {os.readlink(path)} {root}{path}")
            elif Path(path).exists():
                commands.append(_bound(path, root, read_only=path not in {"/dev", "/proc"}))
        commands += [_bound(f"/etc/{name}", root) for name in OF_ETC if Path(f"/etc/{name}").exists()]
        for mount in self.container["volumeMounts"]:
            source = str(self._mounts[mount["mountPath"]])
            commands.append(_bound(source, root, at=mount["mountPath"], read_only=mount.get("readOnly", False)))
        sources = [ROOT] if self._programs == Path(sys.prefix) else []  # where it is installed in place
        commands += [_bound(str(path), root) for path in dict.fromkeys((Path(sys.base_prefix), *sources, self._programs))]
        return [*commands, f"mount -o remount,ro {root}", "cd /"]

    def _privileges(self) -> list[str]:
        own, of_pod = self.container["securityContext"], self.spec["securityContext"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        user, group = (f"--{kind}={of_pod[name]}" for kind, name in (("reuid", "runAsUser"), ("regid", "runAsGroup")))
        return ["setpriv", user, group, "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]

    def run(self, command: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """As the kubelet runs a command in the container: same root, same variables, same user."""
        assert self._process is not None, "the pod was not started"
        if self._own_root:
            inside = ["nsenter", f"--target={self._process.pid}", "--mount", "--root", "--wd=/"]
            command = [*inside, *self._privileges(), *command]
        else:
            command = [self._here(word) for word in command]
        return subprocess.run(
            command, env=self.variables(), capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )

    def probe(self, which: str) -> bool:
        """What the kubelet learns from `startupProbe`, `readinessProbe` or `livenessProbe`."""
        asked = self.container[which]["httpGet"]
        return 200 <= self.get(asked["path"], scheme=asked.get("scheme", "HTTP").lower(), port=asked["port"])[0] < 400

    def get(self, path: str, *, scheme: str = "http", port: str = "http") -> tuple[int, bytes]:
        """Status at the port of this name for a client without a certificate or a key; 0 without an answer."""
        try:
            with outsider().open(f"{scheme}://127.0.0.1:{self.port(port)}{path}", timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def port(self, name: str) -> int:
        (port,) = (each["containerPort"] for each in self.container["ports"] if each["name"] == name)
        return int(port)

    def await_ready(self) -> None:
        """Startup, then readiness, as the kubelet asks."""
        assert self._process is not None, "the pod was not started"
        deadline_s = time.monotonic() + PATIENCE_S
        for which in ("startupProbe", "readinessProbe"):
            while which in self.container and not self.probe(which):
                assert self._process.poll() is None, f"the container ended with {self._process.returncode}: {self.log}"
                assert time.monotonic() < deadline_s, f"{which} still fails: {self.log}"
                time.sleep(POLL_S)

    def wait(self) -> int:
        """Its exit code, once it has ended by itself."""
        assert self._process is not None, "the pod was not started"
        return self._process.wait(PATIENCE_S)

    def stop(self) -> int:
        """As the kubelet ends it: preStop, then SIGTERM, both within the grace; its exit code. Fails where SIGKILL would come."""
        assert self._process is not None, "the pod was not started"
        ends_s = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        if "lifecycle" in self.container:
            hook = self.run(self.container["lifecycle"]["preStop"]["exec"]["command"], timeout_s=ends_s - time.monotonic())
            assert hook.returncode == 0, f"preStop: {hook.stdout}{hook.stderr}"
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(ends_s - time.monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _bound(source: str, root: Path, *, at: str = "", read_only: bool = True) -> str:
    target = f"{root}{at or source}"
    create = f"mkdir -p {target}" if Path(source).is_dir() else f"mkdir -p {Path(target).parent} && touch {target}"
    bind = "rbind" if source in {"/dev", "/proc"} else "bind"
    command = f"{create} && mount --{bind} {source} {target}"
    return f"{command} && mount -o remount,bind,ro {target}" if read_only else command


def image_variables(programs: Path) -> dict[str, str]:
    """What the last stage of deploy/Dockerfile says with ENV; its programs lie elsewhere here."""
    (line,) = (instruction.text for instruction in image_stages()[-1] if instruction.name == "ENV")
    given = dict(word.split("=", 1) for word in shlex.split(line))
    assert given["PATH"] == "/opt/tidelog/bin:$PATH"
    return given | {"PATH": f"{programs / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
