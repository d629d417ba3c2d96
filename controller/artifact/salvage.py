"""A document without its faulty parts, so that the rest of it can still be checked.

Checks between fields need a whole document. Where fields are mistaken they get one in which
each mistaken part is left out, or stands in for where it cannot be; what they then find in or
because of such a part is dropped.
"""

import json
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from canaryctl.controller.artifact.messages import place_of
from canaryctl.controller.artifact.mistakes import Loc, Mistake
from canaryctl.controller.artifact.schema import ArtifactDocument

_STAND_IN: dict[str, Any] = {
    "apiVersion": "canaryctl/v1",
    "kind": "RuntimeArtifact",
    "name": "unnamed",
    "version": "0",
    "service": "unnamed",
    "runtime": {"engine": {"name": "unnamed", "version": "0"}, "model": {"id": "unnamed"}},
    "gates": [],
}


def validate(data: Any) -> ArtifactDocument:
    """Strictly: no number from text, no flag from a number."""
    return ArtifactDocument.model_validate_json(json.dumps(data), strict=True)


class Salvage:
    """``document``: always valid. ``faulty``: the places of ``data`` that are not in it."""

    def __init__(self, data: Any, faulty: Iterable[Loc]) -> None:
        self.faulty = set(faulty)
        while True:
            self._values: dict[Loc, Loc] = {}  # place in the salvaged data → in the original
            salvaged = self._without_faults(data, (), (), _STAND_IN)
            try:
                self.document = validate(salvaged)
            except ValidationError as error:
                for found in error.errors(include_url=False, include_input=False):
                    self._give_up(found)
            else:
                return

    def _give_up(self, error: ErrorDetails) -> None:
        place = place_of(error, self._values)
        if error["type"] == "missing":
            loc = (*self._values[place[:-1]], place[-1])
        else:
            loc = self._values[place]
        while loc in self.faulty and loc:
            loc = loc[:-1]
        self.faulty.add(loc)

    def _without_faults(self, data: Any, at: Loc, original: Loc, stand_in: Any) -> Any:
        self._values[at] = original
        if original in self.faulty and (stand_in is not None):
            data = stand_in
        if isinstance(data, dict):
            known = stand_in if isinstance(stand_in, dict) else {}
            kept = {k: v for k, v in data.items() if (*original, k) not in self.faulty}
            replaced = {k: v for k, v in known.items() if (*original, k) in self.faulty}
            return {
                key: self._without_faults(value, (*at, key), (*original, key), known.get(key))
                for key, value in (kept | replaced).items()
            }
        if isinstance(data, list):
            kept_items = [
                (index, item)
                for index, item in enumerate(data)
                if (*original, index) not in self.faulty
            ]
            return [
                self._without_faults(item, (*at, place), (*original, index), None)
                for place, (index, item) in enumerate(kept_items)
            ]
        return data

    def sound(self, mistake: Mistake) -> Mistake | None:
        """``mistake`` at its place in the original; None where a fault may have led to it."""
        loc = self._original(mistake.loc)
        needs = tuple(self._original(need) for need in mistake.needs)
        if any(_related(place, fault) for place in (loc, *needs) for fault in self.faulty):
            return None
        return Mistake(loc, mistake.message, needs, mistake.at_key)

    def _original(self, loc: Loc) -> Loc:
        known = loc
        while known not in self._values:
            known = known[:-1]
        return (*self._values[known], *loc[len(known) :])


def _related(one: Loc, other: Loc) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
