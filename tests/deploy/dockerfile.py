"""deploy/Dockerfile, read: its stages, and the instructions of each."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.kit.servers import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"


class Instruction(NamedTuple):
    name: str
    # What follows the name, on one line.
    text: str


def instructions() -> list[Instruction]:
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(name, text.strip()) for name, _, text in (line.partition(" ") for line in whole.splitlines() if line)]


def image_stages() -> list[list[Instruction]]:
    """Each begins with its FROM; the last is the image."""
    stages: list[list[Instruction]] = []
    for instruction in instructions():
        if instruction.name == "FROM":
            stages.append([])
        stages[-1].append(instruction)
    return stages
