from __future__ import annotations

import hashlib
import re

from gateway.console.console import STATIC
from gateway.console.rendering import TEMPLATES

NOTED = {name: digest for digest, name in map(str.split, (STATIC / "CHECKSUMS").read_text().splitlines())}


def test_every_vendored_file_is_the_one_whose_checksum_was_noted() -> None:
    vendored = {path.name for path in STATIC.iterdir() if re.match(r"[a-z]+-\d", path.name)}
    assert vendored == NOTED.keys()
    for name, digest in NOTED.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest, name


def test_templates_name_only_files_that_are_there() -> None:
    for template in TEMPLATES.glob("*.html"):
        for name in re.findall(r"/console/static/([\w.-]+)", template.read_text()):
            assert (STATIC / name).is_file(), f"{template.name}: {name}"
