"""The judge over a store of samples: real store, real gates, scrapes as the test wants them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from canaryctl.common.metrics import AnySignal, References, Signal
from canaryctl.controller.artifact.digest import digest_of
from canaryctl.controller.artifact.loader import LoadedArtifact
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.discovery import judged_labels
from canaryctl.controller.judge import Judge, Judgement
from canaryctl.controller.model import Release, ReleaseKind
from canaryctl.controller.plan import make_plan
from canaryctl.controller.states import Phase
from canaryctl.controller.store import Store, open_store
from canaryctl.controller.submit import Submitter
from canaryctl.controller.view import InstanceView, PoolView
from canaryctl.gates.outcome import GateResult
from canaryctl.gates.samples import Missing, Scrape, Series, Value
from canaryctl.gates.sources.base import Target
from canaryctl.runtimes.engines.registry import engine
from tests.support.artifacts import artifact
from tests.support.releases import CANARY, PREVIOUS, T0, instance

DOWN = "http://prometheus: cannot be reached"


@dataclass
class Stored:
    """A store of samples: what it was last given, whenever it is asked."""

    name: str = "prometheus"
    scrapes: dict[str, Scrape] = field(default_factory=dict)
    down: bool = False
    asked: list[Target] = field(default_factory=list)

    def scraped(self, name: str, at: float, requests: float, errors: float = 0) -> None:
        """The instance's page at that time (seconds after T0)."""
        values: dict[AnySignal, Value] = {
            Signal.REQUESTS: Series({(): requests}),
            Signal.ERRORS: Series({(): errors}),
        }
        self.scrapes[name] = Scrape(name, T0.timestamp() + at, values, self.name, f"{requests}\n")

    def read(self, target: Target, refs: References, at: float) -> Scrape:
        self.asked.append(target)
        found = self.scrapes.get(target.instance)
        if self.down or found is None:
            return Scrape(target.instance, at, dict.fromkeys(refs, Missing(DOWN)), self.name)
        return found


@dataclass
class Bench:
    judge: Judge
    release: Release
    stored: Stored
    store: Store

    def look(self, at: float) -> Judgement:
        """Judge at that time, with one warm instance in each arm."""
        digest = self.release.digest
        members = {
            pool: PoolView(
                (InstanceView(replace(instance(pool), pool=pool, digest=digest), alive=True),)
            )
            for pool in (CANARY, PREVIOUS)
        }
        found = self.judge.judge(
            self.release,
            make_plan(self.release),
            members,
            events=[],
            progress_checks=1,
            now=T0 + timedelta(seconds=at),
        )
        self.judge.recorded()
        return found

    def both(self, at: float, requests: float, errors: float = 0) -> None:
        self.stored.scraped(f"{CANARY}-0", at, requests, errors)
        self.stored.scraped(f"{PREVIOUS}-0", at, requests)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    document = ArtifactDocument.model_validate(artifact("good", 1, rollout={"interval": "5s"}))
    settings = SimpleNamespace(
        database_url=f"sqlite:///{tmp_path}/canaryctl.db", state_dir=tmp_path
    )
    with open_store(settings) as store, ThreadPoolExecutor(2) as executor:
        loaded = LoadedArtifact(document, digest_of(document.runtime), "", tmp_path)
        made = Submitter(store, engine, lambda: 8000).release(loaded, actor="ann", now=T0)
        release = replace(
            made,
            id=CANARY,
            kind=ReleaseKind.RELEASE,
            phase=Phase.PROGRESSING,
            step_at=T0,
            previous_pool=PREVIOUS,
            previous_digest=made.digest,
        )
        stored = Stored()
        judge = Judge(
            store,
            lambda _: stored,
            Catalog(store, engine),
            lambda member: f"http://{member.instance.id}/metrics",
            judged_labels,
            executor,
        )
        yield Bench(judge, release, stored, store)


def gate(found: Judgement, name: str) -> GateResult:
    (result,) = [r for r in found.verdict.results if r.name == name]
    return result


def test_a_look_is_taken_when_both_arms_have_a_new_sample(bench: Bench) -> None:
    bench.both(0, 10)
    assert not bench.look(1).looked  # nothing earlier to compare with
    bench.both(5, 30)
    assert bench.look(6).looked
    # Due again, and asked again every second, but there is nothing new yet.
    for at in (11.0, 12.0, 13.0):
        found = bench.look(at)
        assert (found.looked, found.evidence, found.blind) == (False, (), None)
    bench.stored.scraped(f"{CANARY}-0", 10, 60)
    assert not bench.look(14).looked
    bench.stored.scraped(f"{PREVIOUS}-0", 10, 60)
    found = bench.look(15)
    assert found.looked
    assert len(found.evidence) == 2
    assert gate(found, "error_rate").samples == 50
    assert bench.judge.looks(CANARY) == 2


def test_between_looks_nobody_is_asked(bench: Bench) -> None:
    bench.both(0, 10)
    bench.look(0.5)
    bench.both(5, 30)
    bench.look(6)
    asked = len(bench.stored.asked)
    bench.look(10.9)
    assert len(bench.stored.asked) == asked
    bench.look(11)  # the interval of 5 s is over, and there is no new sample
    bench.look(11.5)
    assert len(bench.stored.asked) == asked + 2
    bench.look(12)
    assert len(bench.stored.asked) == asked + 4


def test_while_it_is_down_the_judge_is_blind_and_afterwards_nothing_is_lost(bench: Bench) -> None:
    bench.both(0, 10)
    bench.look(1)
    bench.both(5, 30)
    assert bench.look(6).blind is None
    bench.stored.down = True
    for at in (11.0, 16.0, 21.0):
        found = bench.look(at)
        assert found.blind == f"canary {CANARY}-0: {DOWN}"
        assert DOWN in gate(found, "error_rate").reason
        assert not found.verdict.promotable
    assert bench.judge.looks(CANARY) == 1
    bench.stored.down = False
    bench.both(25, 130, errors=100)
    found = bench.look(26)
    assert found.blind is None
    # 20 requests in the first window and 100 over the gap, every error of it included.
    assert gate(found, "error_rate").samples == 120
    assert gate(found, "error_rate").outcome.value == "failed"


def test_one_arm_that_cannot_be_read_is_enough_to_be_blind(bench: Bench) -> None:
    bench.stored.scraped(f"{CANARY}-0", 0, 10)
    found = bench.look(1)
    assert found.blind == f"baseline {PREVIOUS}-0: {DOWN}"
    bench.stored.scraped(f"{PREVIOUS}-0", 5, 10)
    bench.stored.scraped(f"{CANARY}-0", 5, 30)
    assert bench.look(6).blind is None


def test_a_canary_that_was_never_read_has_not_been_looked_at(bench: Bench) -> None:
    bench.stored.scraped(f"{PREVIOUS}-0", 0, 10)
    bench.look(1)
    bench.stored.scraped(f"{PREVIOUS}-0", 5, 20)
    bench.stored.scraped(f"{CANARY}-0", 5, 10)
    assert bench.look(6).blind is None
    assert bench.judge.looks(CANARY) == 0
    bench.both(10, 40)
    bench.look(11)
    assert bench.judge.looks(CANARY) == 1


def test_it_asks_by_the_labels_of_the_instance(bench: Bench) -> None:
    bench.look(1)
    labels = {target.instance: dict(target.labels) for target in bench.stored.asked}
    assert labels[f"{CANARY}-0"] == {
        "service": "chat",
        "artifact": bench.release.digest,
        "release": CANARY,
        "role": "canary",
        "instance": f"{CANARY}-0",
    }
    assert labels[f"{PREVIOUS}-0"]["role"] == "stable"
    assert labels[f"{PREVIOUS}-0"]["release"] == PREVIOUS
