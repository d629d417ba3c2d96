"""What the controller says of itself, for Prometheus. Names and meanings: docs/metrics.md.

What the store knows is read when the page is asked for, so that it is true whichever process
acted; what only a tick knows is remembered from the last one.
"""

import logging
import platform
from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from canaryctl.controller.report import OUTCOMES
from canaryctl.controller.service import Tick
from canaryctl.controller.store import Store
from canaryctl.gates.outcome import Outcome

log = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ControllerMetrics:
    """A registry of its own. Any thread may use it."""

    def __init__(self, store: Store) -> None:
        # A series beside every other, which nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        service = ("service",)
        build = Gauge(
            "canaryctl_build_info",
            "Always 1; the labels say what runs.",
            ("version", "python"),
            registry=self._registry,
        )
        build.labels(version("canaryctl"), platform.python_version()).set(1)
        self._duration = Histogram(
            "canaryctl_tick_duration_seconds",
            "How long a tick of a service took.",
            service,
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._lateness = Histogram(
            "canaryctl_tick_lateness_seconds",
            "How long after its time a tick of a service began.",
            service,
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._failures = Counter(
            "canaryctl_tick_failures_total",
            "Ticks that ended in an error; the next one tries again.",
            service,
            registry=self._registry,
        )
        self._retries = Counter(
            "canaryctl_effects_retried_total",
            "Effects (routing, starting, stopping) that did not succeed and are tried again.",
            service,
            registry=self._registry,
        )
        self._leases = Gauge(
            "canaryctl_lease_held",
            "1 where this controller acts on the service, 0 where another one does.",
            service,
            registry=self._registry,
        )
        self._weights = _Weights()
        self._registry.register(self._weights)
        self._registry.register(_Records(store))

    def ticked(self, service: str, tick: Tick | None, *, duration_s: float, late_s: float) -> None:
        """A tick has ended. ``tick`` None: another controller holds the lease."""
        self._duration.labels(service).observe(duration_s)
        self._lateness.labels(service).observe(late_s)
        self._failures.labels(service)  # zero until the first one, not absent
        self._leases.labels(service).set(tick is not None)
        self._retries.labels(service).inc(len(tick.troubles) if tick is not None else 0)
        self._weights.ticks[service] = tick

    def failed(self, service: str) -> None:
        """A tick has raised."""
        self._failures.labels(service).inc()

    def page(self) -> bytes:
        """The page in the text format, of CONTENT_TYPE."""
        return generate_latest(self._registry)


class _Weights(Collector):
    """Wanted and effective weights as of the last tick. Of a service on which another
    controller acts there are none: what it wants is not known here."""

    def __init__(self) -> None:
        self.ticks: dict[str, Tick | None] = {}

    def collect(self) -> Iterator[Metric]:
        labels = ("service", "pool")
        wanted = GaugeMetricFamily(
            "canaryctl_weight_wanted_percent", "Share of traffic a pool should have.", labels=labels
        )
        effective = GaugeMetricFamily(
            "canaryctl_weight_effective_percent",
            "Share of traffic a pool has, as the router reports it.",
            labels=labels,
        )
        for service, tick in list(self.ticks.items()):
            if tick is None:
                continue
            for pool, weight in tick.wanted.items():
                wanted.add_metric((service, pool), weight)
            for pool, weight in (tick.effective or {}).items():
                effective.add_metric((service, pool), weight)
        yield wanted
        yield effective


class _Records(Collector):
    """What the store says now."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> list[Metric]:
        """Nothing: registering must not read the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "canaryctl_store_up", "1 where the database could be read for this page."
        )
        try:
            families = [self._releases(), *self._gates()]
        except Exception:  # whatever the driver raises: the rest of the page is as needed
            log.exception("the database cannot be read for /metrics")
            families = []
        up.add_metric((), bool(families))
        yield up
        yield from families

    def _releases(self) -> Metric:
        family = GaugeMetricFamily(
            "canaryctl_releases",
            "Releases by the phase they are in, final ones included, and its outcome.",
            labels=("service", "phase", "outcome"),
        )
        for (service, phase), count in sorted(self._store.count_releases().items()):
            family.add_metric((service, phase.value, OUTCOMES.get(phase, "held")), count)
        return family

    def _gates(self) -> list[Metric]:
        labels = ("service", "release", "gate")
        value = GaugeMetricFamily(
            "canaryctl_gate_value",
            "What an active release's gate measured, in the gate's own unit.",
            labels=labels,
        )
        baseline = GaugeMetricFamily(
            "canaryctl_gate_baseline", "The same of the baseline.", labels=labels
        )
        limit = GaugeMetricFamily(
            "canaryctl_gate_limit", "What the value is held to.", labels=labels
        )
        samples = GaugeMetricFamily(
            "canaryctl_gate_samples", "Observations of the canary counted so far.", labels=labels
        )
        outcome = GaugeMetricFamily(
            "canaryctl_gate_outcome",
            "1 for the outcome that the gate has, 0 for the others.",
            labels=(*labels, "outcome"),
        )
        for release in self._store.active_releases():
            for record in self._store.gate_records(release.id):
                result, key = record.result, (release.service, release.id, record.gate)
                for family, number in (
                    (value, result.value),
                    (baseline, result.baseline),
                    (limit, result.limit),
                    (samples, result.samples),
                ):
                    if number is not None:
                        family.add_metric(key, number)
                for possible in Outcome:
                    outcome.add_metric((*key, possible.value), possible is result.outcome)
        return [value, baseline, limit, samples, outcome]
