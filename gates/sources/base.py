"""Where samples come from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from canaryctl.common.metrics import References
from canaryctl.gates.samples import Scrape


@dataclass(frozen=True, slots=True)
class Target:
    """One instance to read. ``url``: of its metrics page."""

    instance: str
    url: str
    labels: Mapping[str, str]  # service, artifact, release, role


class SampleSource(Protocol):
    name: str

    def read(self, target: Target, refs: References, at: float) -> Scrape:
        """Raw cumulative values now. Never raises for what the far side does: a signal that
        cannot be read is :class:`~canaryctl.gates.samples.Missing` with the reason."""
