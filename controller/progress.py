"""Whether warm engines generate: one token in bounded time, counted per instance."""

from collections.abc import Mapping
from datetime import datetime

from canaryctl.runtimes.progress import ProbeTarget, ProgressProbe


class ProgressWatch:
    """The progress checks of one release. An engine with traffic is not asked, so that no request
    of the checks is among those that latency gates judge; both arms are checked alike."""

    def __init__(self, *, interval_s: float, timeout_s: float) -> None:
        self._probe = ProgressProbe(interval_s=interval_s, timeout_s=timeout_s)
        self._good: dict[str, int] = {}
        self._stuck: dict[str, str] = {}

    def look(self, targets: Mapping[str, ProbeTarget], now: datetime) -> None:
        """Begin checks that are due and take in those that ended; never waits."""
        for result in self._probe.poll(targets, now):
            if result.ok:
                self._good[result.instance] = self._good.get(result.instance, 0) + 1
                self._stuck.pop(result.instance, None)
            else:
                self._stuck[result.instance] = f"{result.instance}: {result.reason}"

    def good(self, instance: str) -> int:
        """Checks that ended in time."""
        return self._good.get(instance, 0)

    def stuck(self, instance: str) -> str | None:
        """Why the latest check of the instance failed; None: it did not."""
        return self._stuck.get(instance)
