"""What the starts of a calibration showed, kept beside its file until that is written.

Starts take minutes. A calibration that is cut off goes on after the last one that was finished,
where it is asked for again with the same artifact and options.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from canaryctl.common.errors import InputError
from canaryctl.controller.artifact.wholefile import read_document, replace_file

FORMAT: Final = "canaryctl/grid-calibration-partial/v1"


@dataclass(frozen=True, slots=True)
class MeasuredStart:
    """One start. ``machine``, ``engine``: on what and with what, in words. ``sizes``: the grid that
    the engine attests. ``step_ms``: (tokens of a step, milliseconds), once for each round; none
    where only the capture was wanted. ``graph_mib``, ``capture_s``: None without graphs. The last
    three are measured of the engine without graphs alone."""

    name: str
    machine: str
    engine: str
    sizes: tuple[int, ...]
    step_ms: tuple[tuple[int, float], ...] = ()
    graph_mib: float | None = None
    capture_s: float | None = None
    kv_cache_tokens: int | None = None
    kv_bytes_per_token: int | None = None
    prefill_us_per_token: float | None = None


class Kept:
    """The finished starts, by name, in ``path``. ``asked``: JSON that says what is measured; a file
    that was asked for something else counts for nothing, and ``say`` is told so."""

    def __init__(self, path: Path, asked: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self.path = path
        self._asked = json.loads(json.dumps(asked))
        self._starts: dict[str, MeasuredStart] = {}
        if not path.exists():
            return
        document = read_document(path, FORMAT, "starts of a calibration")
        before = document.get("asked", {})
        other = [name for name, value in self._asked.items() if before.get(name) != value]
        if other:
            say(f"{path} is of another {' and another '.join(other)}: beginning anew")
            return
        try:
            self._starts = {start.name: start for start in map(start_of, document["starts"])}
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: found no whole starts ({error!r}); delete it to begin anew"
            ) from error
        say(f"{path}: {len(self)} starts were finished before; going on from there")

    def __len__(self) -> int:
        return len(self._starts)

    def find(self, name: str) -> MeasuredStart | None:
        return self._starts.get(name)

    def add(self, start: MeasuredStart) -> None:
        """InputError where it ran on another machine or with another engine than those before."""
        for kept in self._starts.values():
            if (kept.machine, kept.engine) != (start.machine, start.engine):
                raise InputError(
                    f"found {start.engine} on {start.machine}, and the starts kept in {self.path} "
                    f"are of {kept.engine} on {kept.machine}; delete that file to begin anew"
                )
        self._starts[start.name] = start
        starts = [asdict(kept) for kept in self._starts.values()]
        document = {"format": FORMAT, "asked": self._asked, "starts": starts}
        replace_file(self.path, json.dumps(document, indent=1) + "\n")

    def remove(self) -> None:
        """When the calibration is written."""
        self.path.unlink(missing_ok=True)


def kept_beside(out: Path) -> Path:
    """The file of the starts that ``out`` will be made of."""
    return out.with_name(f"{out.name}.partial.json")


def start_of(found: Mapping[str, Any]) -> MeasuredStart:
    """Of its JSON; LookupError, TypeError or ValueError where it is not whole."""
    steps = tuple((int(tokens), float(ms)) for tokens, ms in found["step_ms"])
    return MeasuredStart(**{**found, "sizes": tuple(found["sizes"]), "step_ms": steps})
