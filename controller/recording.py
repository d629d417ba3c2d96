"""Recording an A/A history: what every stable engine of a service says of its latencies, raw."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import references
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.model import Instance, InstanceState
from canaryctl.controller.store import Store
from canaryctl.gates.history import SIGNALS
from canaryctl.gates.samplefile import BASELINE, sample_line
from canaryctl.gates.samples import Histogram, Missing, Scrape
from canaryctl.gates.sources.base import SampleSource, Target


@dataclass(frozen=True, slots=True)
class Round:
    """One scrape of every engine. ``lines``: of a sample file; ``faults``: what has none."""

    engines: int
    lines: tuple[str, ...]
    faults: tuple[str, ...]


class Recorder:
    """``metrics_url``: an instance's own page."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        source: SampleSource,
        metrics_url: Callable[[Instance], str],
        executor: Executor,
    ) -> None:
        self._store, self._catalog, self._source = store, catalog, source
        self._metrics_url, self._executor = metrics_url, executor

    def round(self, service: str, now: datetime) -> Round:
        """InputError for a service that has no stable runtime."""
        pool = self._store.service(service).stable_pool
        if pool is None:
            raise InputError(f"{service} has no stable runtime; release one first")
        engines = [
            instance
            for instance in self._store.instances(service=service, live_only=True)
            if instance.pool == pool and instance.state is InstanceState.READY
        ]
        at = now.timestamp()
        scrapes = self._executor.map(lambda instance: self._read(instance, at), engines)
        lines: list[str] = []
        faults: list[str] = []
        for scrape in scrapes:
            for signal in SIGNALS.values():
                value = scrape.values.get(signal, Missing("the engine does not say"))
                if isinstance(value, Histogram):
                    lines.append(sample_line(at, BASELINE, scrape.instance, signal, value))
                else:
                    why = value.reason if isinstance(value, Missing) else "it is no histogram"
                    faults.append(f"{scrape.instance}: no {signal.value}: {why}")
        return Round(len(engines), tuple(lines), tuple(faults))

    def _read(self, instance: Instance, at: float) -> Scrape:
        version = self._catalog.artifact(instance.digest).runtime.engine.version
        known = self._catalog.engine(instance.digest).metrics(version)
        target = Target(instance.id, self._metrics_url(instance), {})
        return self._source.read(target, references(SIGNALS.values(), known), at)
