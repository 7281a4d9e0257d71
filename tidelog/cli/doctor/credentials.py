"""What `tidelog doctor --url` finds of the file with the API key that is named: it can be read, holds a key, and is its owner's."""

from __future__ import annotations

import stat
from pathlib import Path

from metadata.errors import TidelogError
from tidelog.cli.doctor.diagnosis import Diagnosis, failed
from tidelog.settings import SettingChanges, settings_from
from tidelog.transport.credentials import Credentials

_CHECK = "credentials"


def check_credentials(credentials: SettingChanges) -> list[Diagnosis]:
    """Nothing to say where no file with a key is named. What it holds is not told."""
    path = credentials.get("api_key_file")
    if not path:
        return []
    try:
        Credentials(settings_from({"api_key_file": path}), tls=False)
        others = Path(path).stat().st_mode & stat.S_IROTH
    except TidelogError as error:
        return [failed(_CHECK, error)]
    except OSError as error:
        return [Diagnosis(_CHECK, "failed", f"{path}: {error.strerror}", "Name a file that stays.")]
    if others:
        return [Diagnosis(_CHECK, "warning", f"{path}: everybody on this machine may read the key", f"chmod o-rwx {path}")]
    return [Diagnosis(_CHECK, "ok", f"{path} holds a key")]
