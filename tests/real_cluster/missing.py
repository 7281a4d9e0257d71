"""What a machine lacks that is to be a cluster of its own. Pure: the caller says what is there."""

from __future__ import annotations

from collections.abc import Callable

# Programs, and the package of Debian that brings each.
PACKAGES = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "gcc": "gcc",
    "ip": "iproute2",
    "iptables": "iptables",
    "runc": "runc",
    "socat": "socat",
    "unshare": "util-linux",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}


def lacks(found: Callable[[str], str | None], *, platform: str, is_root: bool) -> str:
    """In one line what to do; empty where all is there. `found` is shutil.which."""
    if platform != "linux":
        return "it needs Linux"
    if not is_root:
        return "it needs root: namespaces, mounts and cgroups"
    packages = sorted(package for program, package in PACKAGES.items() if found(program) is None)
    wanted = [f"apt-get install {' '.join(packages)}"] if packages else []
    if found("go") is None:
        wanted.append("Go 1.24 or later on the PATH")
    return f"it needs: {'; '.join(wanted)}" if wanted else ""
