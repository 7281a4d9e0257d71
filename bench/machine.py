"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import psutil


def facts(directory: Path) -> dict[str, str | int | float]:
    """`directory` is where the bucket and the floor's files lie."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "directory": str(directory),
        "file_system": _file_system(directory),
        "disk_free_gib": round(shutil.disk_usage(directory).free / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _file_system(directory: Path) -> str:
    """Type of the file system that holds the directory: the longest mount point above it."""
    holding = [partition for partition in psutil.disk_partitions(all=True) if directory.is_relative_to(partition.mountpoint)]
    return max(holding, key=lambda partition: len(partition.mountpoint)).fstype if holding else "unknown"
