"""The images: deploy/Dockerfile built by buildah as it stands, and what stands for those that no registry brings.

    debootstrap ─▶ python:3.11-slim-bookworm ─▶ + a C compiler: python:3.11-bookworm ─▶ deploy/Dockerfile ─▶ the image
    the wheel's etcd ─▶ etcd's image      pause.c of Kubernetes ─▶ the image of every pod's first process

Both stand-ins have Debian's Python, at /usr/bin, and pip's configuration and authorities of this machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.deploy.chart import CHART
from tests.deploy.dockerfile import DOCKERFILE, image_stages
from tests.kit.etcd_server import WHEEL
from tests.kit.servers import ROOT

IMAGE = "my-registry/tidelog:0.1.0"
PAUSE = "localhost/pause:here"
SUITE = "bookworm"
OF_PYTHON = ("python3.11", "python3.11-venv", "ca-certificates")
OF_THE_COMPILER = ("gcc", "g++", "libc6-dev", "python3.11-dev")
OF_THIS_MACHINE = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True, slots=True)
class Builder:
    # Of buildah's store, the roots and the archives.
    directory: Path

    def buildah(self, *arguments: str) -> str:
        """What it prints."""
        storage = ["--root", str(self.directory / "store"), "--runroot", str(self.directory / "run"), "--storage-driver", "overlay"]
        return _run(["unshare", "--mount", "buildah", *storage, *arguments])  # it leaves mounts behind

    def archive(self, image: str, name: str) -> Path:
        """Of an image that is in the store, to be known by the name."""
        path = self.directory / f"{name.replace('/', '_').replace(':', '_')}.tar"
        path.unlink(missing_ok=True)
        self.buildah("push", "--quiet", image, f"docker-archive:{path}:{name}")
        return path

    def build(self) -> Path:
        """The archive of the image of deploy/Dockerfile."""
        first, last = (stage[0].text.split()[0] for stage in image_stages())
        root = self.directory / "python"
        if not root.exists():
            self._make_root(root)
        self._commit(root, last)
        self._commit_compiler(root, first)
        self.buildah(
            *("build", "--layers", "--pull-never", "--isolation", "chroot", "--network", "host"),
            *("--file", str(DOCKERFILE), "--ignorefile", f"{DOCKERFILE}.dockerignore", "--tag", f"localhost/{IMAGE}", str(ROOT)),
        )
        return self.archive(f"localhost/{IMAGE}", IMAGE)

    def _make_root(self, root: Path) -> None:
        scratch = root.with_suffix(".scratch")
        shutil.rmtree(scratch, ignore_errors=True)
        _run(["debootstrap", "--variant=minbase", SUITE, str(scratch)])
        _install(scratch, OF_PYTHON)
        for name in OF_THIS_MACHINE:
            if Path(name).exists():
                shutil.copy(name, scratch / name[1:])
        scratch.rename(root)

    def _commit(self, root: Path, image: str) -> None:
        archive = self.directory / "root.tar"
        _run(["tar", "-C", str(root), "-cf", str(archive), "."])
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", "--quiet", container, str(archive), "/")
        self.buildah("commit", "--quiet", "--rm", container, f"localhost/{image}")
        archive.unlink()

    def _commit_compiler(self, root: Path, image: str) -> None:
        with_compiler = root.with_name("compiler")
        if not with_compiler.exists():
            scratch = with_compiler.with_suffix(".scratch")
            shutil.rmtree(scratch, ignore_errors=True)
            _run(["cp", "-a", str(root), str(scratch)])
            _install(scratch, OF_THE_COMPILER)
            scratch.rename(with_compiler)
        self._commit(with_compiler, image)

    def pack(self, image: str, programs: list[Path], entrypoint: str = "") -> Path:
        """The archive of an image that holds these programs, which need nothing else, in /usr/local/bin."""
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", "--quiet", container, *map(str, programs), "/usr/local/bin/")
        self.buildah(
            "config", "--env", "PATH=/usr/local/bin", "--entrypoint", f'["{entrypoint}"]' if entrypoint else "[]", container
        )
        self.buildah("commit", "--quiet", "--rm", container, "localhost/packed")
        return self.archive("localhost/packed", image)

    def pack_etcd(self, image: str) -> Path:
        return self.pack(image, [WHEEL / "etcd", WHEEL / "etcdctl"])

    def pack_pause(self, source: Path) -> Path:
        program = self.directory / "pause"
        _run(["gcc", "-Os", "-static", "-DVERSION=here", "-o", str(program), str(source)])
        return self.pack(PAUSE, [program], "/usr/local/bin/pause")


def etcd_image() -> str:
    """As the chart names it by default."""
    named = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["etcd"]["image"]
    return f"{named['repository']}:{named['tag']}"


def _install(root: Path, packages: tuple[str, ...]) -> None:
    """apt runs in there, by the names that this machine resolves."""
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    here = "export DEBIAN_FRONTEND=noninteractive TMPDIR=/tmp"  # this machine's folder for temporary files is not in there
    apt = f"apt-get install --yes --quiet --no-install-recommends {' '.join(packages)}"
    _run(["chroot", str(root), "sh", "-ec", f"{here}; apt-get update --quiet; {apt}; apt-get clean"])
    shutil.rmtree(root / "var/lib/apt/lists")
    (root / "etc/resolv.conf").unlink()


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:6])} … fails: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout
