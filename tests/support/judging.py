"""A recorded release that is judged: real store, real gates, and pages as the test wants them."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from canaryctl.common.metrics import AnySignal, References, Signal
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.discovery import judged_labels
from canaryctl.controller.judge import Judge, Judgement, gate_terms
from canaryctl.controller.model import Artifact, Lease, Release
from canaryctl.controller.plan import make_plan
from canaryctl.controller.replay import Replay, replay
from canaryctl.controller.states import Phase
from canaryctl.controller.store import Store, open_store
from canaryctl.controller.view import InstanceView, PoolView
from canaryctl.gates.base import Event
from canaryctl.gates.history import AaHistory
from canaryctl.gates.samples import Histogram, Missing, Scrape, Series, Value
from canaryctl.gates.sources.base import Target
from canaryctl.runtimes.engines.registry import engine
from tests.support.releases import CANARY, PREVIOUS, T0, document, instance, release

EDGES = tuple(0.02 * 1.1 ** (k / 2) for k in range(120))
INTERVAL_S = 15.0


@dataclass
class Page:
    """Cumulative, as an engine's own: latencies by bucket, requests and errors."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(EDGES) + 1))
    errors: int = 0

    def answer(self, latency_s: float, *, error: bool = False) -> None:
        place = next((n for n, edge in enumerate(EDGES) if latency_s <= edge), len(EDGES))
        self.counts[place] += 1
        self.errors += error

    def values(self) -> dict[AnySignal, Value]:
        total, buckets = 0, []
        for edge, count in zip((*EDGES, float("inf")), self.counts, strict=True):
            total += count
            buckets.append((edge, total))
        return {
            Signal.TTFT: Histogram(tuple(buckets), total * 0.1),
            Signal.REQUESTS: Series({(): float(total)}),
            Signal.ERRORS: Series({(): float(self.errors)}),
        }


@dataclass
class Pages:
    """A source of samples. ``down``: nobody answers."""

    name: str = "scrape"
    pages: dict[str, Page] = field(default_factory=dict)
    down: bool = False

    def read(self, target: Target, refs: References, at: float) -> Scrape:
        if self.down:
            missing = Missing("cannot be reached")
            return Scrape(target.instance, at, dict.fromkeys(refs, missing), self.name)
        values = self.pages[target.instance].values()
        return Scrape(target.instance, at, values, self.name, f"{at}\n")


@dataclass
class Judged:
    """One release of one canary beside one baseline engine, at half of the traffic each."""

    store: Store
    source: Pages
    release: Release
    fence: Lease
    executor: ThreadPoolExecutor
    at: float = 0.0
    progress_checks: int = 1

    def __post_init__(self) -> None:
        self.plan = make_plan(self.release)
        self.judged = replace(
            self.release, phase=Phase.PROGRESSING, step_at=T0, step=len(self.plan.steps) - 1
        )
        self.restart()

    def restart(self) -> None:
        """The controller was killed: the next one knows what the store knows."""
        catalog = Catalog(self.store, engine)
        self.judge = Judge(
            self.store,
            lambda _: self.source,
            catalog,
            lambda member: f"http://{member.instance.id}/metrics",
            judged_labels,
            self.executor,
        )

    @property
    def canary(self) -> Page:
        return self.source.pages[f"{CANARY}-0"]

    @property
    def baseline(self) -> Page:
        return self.source.pages[f"{PREVIOUS}-0"]

    def tick(self, *events: Event, after_s: float = INTERVAL_S, commits: bool = True) -> Judgement:
        """Judge ``after_s`` later and, unless the commit fails, record it."""
        self.at += after_s
        now = T0 + timedelta(seconds=self.at)
        members = {
            pool: PoolView((InstanceView(replace(instance(pool), digest=digest), alive=True),))
            for pool, digest in (
                (CANARY, self.release.digest),
                (PREVIOUS, self.release.digest),
            )
        }
        found = self.judge.judge(
            self.judged,
            self.plan,
            members,
            events=events,
            progress_checks=self.progress_checks,
            now=now,
        )
        if commits:
            self.release = self.store.commit(
                self.release,
                [],
                fence=self.fence,
                now=now,
                gates=found.records,
                look=found.look,
                evidence=found.evidence,
            )
            self.judge.recorded()
        return found

    def replay(self) -> Replay:
        terms = self.store.gate_terms(self.release.id)
        assert terms is not None
        return replay(
            terms, self.store.looks(self.release.id), self.store.gate_records(self.release.id)
        )


@contextmanager
def judged(
    folder: Path, *gates: Mapping[str, Any], history: AaHistory | None = None
) -> Iterator[Judged]:
    settings = SimpleNamespace(database_url=f"sqlite:///{folder}/judged.db", state_dir=folder)
    wanted = gates or (
        {"name": "ttft_p90", "max_regression": "21%"},
        {"name": "error_rate", "max_ratio": "5%"},
    )
    doc = document(gates=list(wanted), rollout={"steps": [{"weight": 10}, {"weight": 50}]})
    made = release(Phase.PENDING, document=doc, revision=0, weight=0)
    made = replace(made, previous_digest=made.digest)
    with open_store(settings) as store, ThreadPoolExecutor(2) as executor:
        store.register_artifact(
            Artifact(made.digest, doc.name, doc.version, doc.service, doc.runtime, T0)
        )
        store.ensure_service(doc.service, lambda: 8000, T0)
        terms = gate_terms(made, make_plan(made), history)
        made = store.create_release(made, now=T0, actor="ann", terms=terms)
        fence = store.acquire("controller", "one", 1e9, T0)
        assert fence is not None
        source = Pages(pages={f"{pool}-0": Page() for pool in (CANARY, PREVIOUS)})
        yield Judged(store, source, made, fence, executor)
