"""Replace a file as a whole, or not at all."""

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Its permissions stay; where it is a link, what it points to is replaced."""
    target = Path(os.path.realpath(path))
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            mode = target.stat().st_mode & 0o7777 if target.exists() else 0o644
            os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
