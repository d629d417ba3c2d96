"""What a grid was planned from, kept so that live traffic can be compared with it.

A plan lies beside the artifact it was written to (``NAME.grid.json``), to be committed with it,
and in the state directory under the runtime's digest, where ``grid drift`` finds it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from canaryctl.common.errors import InputError
from canaryctl.controller.artifact.wholefile import digest_name, read_document, replace_file
from canaryctl.runtimes.grid.distribution import Distribution, Shapes

FORMAT: Final = "canaryctl/grid-plan/v1"


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """``planned_at``: ISO 8601. ``calibration``: whose the figures are. ``observed_at``: no step of
    its traffic is later, ISO 8601; None: not known, as of plans that were stored before it was."""

    source: str
    planned_at: str
    calibration: str
    mode: str
    sizes: tuple[int, ...]
    decode: Mapping[int, int]
    mixed: Mapping[int, int]
    notes: tuple[str, ...]
    observed_at: str | None = None

    @property
    def shapes(self) -> Shapes:
        return Shapes(Distribution.of(self.decode), Distribution.of(self.mixed), self.notes)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"


def beside(artifact: Path) -> Path:
    """Where the plan of an artifact's file lies: ``chat.yaml`` → ``chat.grid.json``."""
    return artifact.with_suffix(".grid.json")


def in_state(state_dir: Path, digest: str) -> Path:
    return state_dir / "grid" / f"{digest_name(digest)}.json"


def store_plan(plan: StoredPlan, *paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, plan.to_json())


def load_plan(path: Path) -> StoredPlan:
    """InputError names the file and what is wrong."""
    found = read_document(path, FORMAT, "grid plan")
    try:
        return StoredPlan(
            source=str(found["source"]),
            planned_at=str(found["planned_at"]),
            calibration=str(found["calibration"]),
            mode=str(found["mode"]),
            sizes=tuple(int(size) for size in found["sizes"]),
            decode={int(size): int(count) for size, count in found["decode"].items()},
            mixed={int(size): int(count) for size, count in found["mixed"].items()},
            notes=tuple(str(note) for note in found["notes"]),
            observed_at=_time(found.get("observed_at")),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a whole grid plan: {error!r}") from error


def _time(found: object) -> str | None:
    """ValueError where it is there and is no time with a zone."""
    if found is None:
        return None
    if datetime.fromisoformat(str(found)).tzinfo is None:
        raise ValueError(f"observed_at is {found!r}, expected a time with its zone")
    return str(found)
