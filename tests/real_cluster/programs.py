"""Kubernetes, CoreDNS and Helm, built from their Go modules into the cache of the user: tens of minutes of two cores, once.

main.go ─▶ one program for all of Kubernetes and CoreDNS ─▶ a link to it for each name; helm is one of its own
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

KUBERNETES_VERSION = "1.34.1"
COREDNS_VERSION = "1.13.1"
HELM_VERSION = "3.19.0"
NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl", "coredns")
MAIN = Path(__file__).parent / "programs" / "main.go"


def module_of(kubernetes_module: str) -> str:
    """The go.mod of a program that imports Kubernetes, of whose own go.mod this is made.

    There its staged parts stand as v0.0.0, to be replaced by directories that its module does not hold.
    """
    parts = sorted(set(re.findall(r"^\s+(k8s\.io/\S+) v0\.0\.0$", kubernetes_module, re.MULTILINE)))
    staged = KUBERNETES_VERSION.replace("1", "v0", 1)
    return "\n".join(
        [
            "module cluster",
            "",
            *re.findall(r"^go \S+$", kubernetes_module, re.MULTILINE),
            "",
            "require (",
            f"\tk8s.io/kubernetes v{KUBERNETES_VERSION}",
            f"\tgithub.com/coredns/coredns v{COREDNS_VERSION}",
            f"\thelm.sh/helm/v3 v{HELM_VERSION}",
            ")",
            "",
            "replace (",
            *(f"\t{part} => {part} {staged}" for part in parts),
            ")",
            "",
        ]
    )


def built_programs() -> Path:
    """The directory that holds them all, and pause.c. They are built where that was not done before."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidelog"
    programs = cache / f"kubernetes-{KUBERNETES_VERSION}-helm-{HELM_VERSION}"
    if not programs.exists():
        print(
            f"building Kubernetes {KUBERNETES_VERSION} and Helm {HELM_VERSION} into {programs}: tens of minutes, once",
            file=sys.stderr,
        )
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:  # so that what was broken off is not taken for whole
            _build(Path(scratch))
            (Path(scratch) / "programs").rename(programs)
    return programs


def _build(scratch: Path) -> None:
    source, programs = scratch / "source", scratch / "programs"
    source.mkdir()
    programs.mkdir()
    (source / "main.go").write_bytes(MAIN.read_bytes())
    # Named by something that is built, so that `go mod tidy` keeps what helm needs.
    (source / "helm.go").write_text('//go:build tools\n\npackage main\n\nimport _ "helm.sh/helm/v3/cmd/helm"\n', encoding="utf-8")
    kubernetes = f"k8s.io/kubernetes@v{KUBERNETES_VERSION}"
    go_mod = _go(source, "mod", "download", "-json", kubernetes)
    directory = re.search(r'"Dir": "(.*)"', go_mod)
    assert directory is not None, go_mod
    (source / "go.mod").write_text(module_of((Path(directory[1]) / "go.mod").read_text(encoding="utf-8")), encoding="utf-8")
    _go(source, "mod", "tidy", "-e")  # -e: tests of others import what can't be had
    version = f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES_VERSION}"
    less = "k8s.io/kubernetes/...=-l -dwarf=false"  # to compile: it is not debugged or measured
    _go(source, "build", "-gcflags", less, "-ldflags", f"-s -w {version}", "-o", str(programs / "kubernetes"), ".")
    _go(source, "build", "-ldflags", "-s -w", "-o", str(programs / "helm"), "helm.sh/helm/v3/cmd/helm")
    for name in NAMES:
        (programs / name).symlink_to("kubernetes")
    (programs / "pause.c").write_bytes((Path(directory[1]) / "build/pause/linux/pause.c").read_bytes())


def _go(directory: Path, *arguments: str) -> str:
    """What it prints."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    done = subprocess.run(["go", *arguments], cwd=directory, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"go {' '.join(arguments[:2])} fails: {done.stderr[-2000:]}")
    return done.stdout
