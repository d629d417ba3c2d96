"""``canaryctl serve``: one daemon beside the commands, and two over one database."""

import random
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from sqlalchemy import URL

from canaryctl.controller.states import FINAL, Phase
from tests.support.cli import Running, eventually
from tests.support.daemons import SERVICE, TAKE_OVER_S, Drill, Site, Watcher
from tests.support.databases import BACKENDS
from tests.support.postgresql import database

pytestmark = pytest.mark.timeout(300)

SEED = 20261129
IDLE_RSS_LIMIT_BYTES = 150e6
IDLE_CPU_LIMIT = 0.06  # of a core; 0.02 alone on a machine
IDLE_S = 8.0
SLOW = {"steps": [{"weight": 25, "bake": "4m"}], "progress_deadline": "10m"}
"""Nothing goes on by itself while commands are tried."""


@pytest.fixture(scope="module", params=BACKENDS)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """With a stable runtime, which a daemon that has ended since then made."""
    folder = tmp_path_factory.mktemp("site")
    if request.param == "sqlite":
        yield from begun(Site(folder))
        return
    server: URL = request.getfixturevalue("postgresql_server")
    with database(server) as url:
        yield from begun(Site(folder, url))


def begun(site: Site) -> Iterator[Site]:
    try:
        daemon = site.daemon()
        assert site.ended(site.submit("good")).phase is Phase.SUCCEEDED
        assert daemon.end() == 0
        assert site.lease() is None  # given back, not left to expire
        yield site
    finally:
        site.close()


@pytest.fixture
def load(site: Site) -> Iterator[Running]:
    running = site.load()
    yield running
    if running.process.poll() is None:
        running.end()


def reached(site: Site, release: str, phase: Phase) -> None:
    def there() -> bool:
        found = site.store.release(release).phase
        assert found is phase or found not in FINAL, found
        return found is phase

    eventually(phase.value, there, timeout_s=60)


def test_db_check_knows_the_backend(site: Site) -> None:
    checked = site.cli.run("db", "check")
    assert checked.code == 0, checked.err
    again = site.cli.run("db", "upgrade")
    assert "up to date" in again.out
    assert "postgresql" in checked.out or "sqlite" in checked.out
    assert "***" in checked.out or "sqlite" in checked.out


def test_commands_beside_a_daemon_are_answered_by_it(site: Site, load: Running) -> None:
    daemon = site.daemon()
    release = site.submit("good", **SLOW)
    waiting = site.cli.start("status", release.id, "--wait", "--json")
    reached(site, release.id, Phase.PROGRESSING)
    lease = site.lease()
    assert daemon.holds(lease)
    for verb, phase in (("pause", Phase.PAUSED), ("resume", Phase.PROGRESSING)):
        done = site.cli.run(verb, release.id, "--reason", "a drill", "--json", timeout_s=60)
        assert done.code == 0, done.err
        assert (done.document["answer"], done.document["phase"]) == ("done", phase.value)
    promoted = site.cli.run("promote", release.id, "--json", timeout_s=60)
    assert promoted.document["answer"] == "done"
    done = waiting.wait(120)
    assert done.code == 0, done.err
    assert done.document["phase"] == "succeeded"

    unwanted = site.submit("good", **SLOW)
    reached(site, unwanted.id, Phase.PROGRESSING)
    aborted = site.cli.run("abort", unwanted.id, "--json", timeout_s=60)
    assert aborted.document["answer"] == "done"
    assert site.cli.run("status", unwanted.id, "--wait", "--json").code == 3
    site.settled()

    after = site.lease()
    assert lease is not None
    assert after is not None
    assert (after.holder, after.token) == (lease.holder, lease.token)  # nobody else ever acted
    assert daemon.end() == 0
    assert "Traceback" not in daemon.log


def test_a_daemon_asked_to_end_finishes_its_tick_and_the_next_goes_on(
    site: Site, load: Running
) -> None:
    release = site.submit("good")
    moments = random.Random(SEED)
    for _ in range(3):
        daemon = site.daemon()
        eventually("the lease", lambda daemon=daemon: daemon.holds(site.lease()))
        time.sleep(moments.uniform(0.2, 1.5))
        began = time.monotonic()
        assert daemon.end() == 0
        assert time.monotonic() - began < TAKE_OVER_S
        assert "Traceback" not in daemon.log
        assert site.lease() is None
        assert site.store.replay_phase(release.id) is site.store.release(release.id).phase
    daemon = site.daemon()
    assert site.ended(release).phase is Phase.SUCCEEDED
    site.settled()
    assert daemon.end() == 0


def test_a_second_daemon_waits_and_takes_over_when_the_first_dies(
    site: Site, load: Running
) -> None:
    first = site.daemon()
    eventually("the lease", lambda: first.holds(site.lease()))
    second = site.daemon()
    before = site.lease()
    time.sleep(3)
    held = site.lease()
    assert before is not None
    assert held is not None
    assert (held.holder, held.token) == (before.holder, before.token)
    release = site.submit("good")
    reached(site, release.id, Phase.PROGRESSING)
    assert first.holds(site.lease())
    first.kill()
    began = time.monotonic()
    eventually("the second", lambda: second.holds(site.lease()), timeout_s=60)
    assert time.monotonic() - began < TAKE_OVER_S
    taken = site.lease()
    assert taken is not None
    assert taken.token == before.token + 1
    assert site.ended(release).phase is Phase.SUCCEEDED
    site.settled()
    assert second.end() == 0


def test_an_idle_daemon_costs_little(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    daemon = site.daemon()
    eventually("the lease", lambda: daemon.holds(site.lease()))
    time.sleep(2)
    process = psutil.Process(daemon.process.pid)
    before = process.cpu_times()
    began = time.monotonic()
    time.sleep(IDLE_S)
    after, took_s = process.cpu_times(), time.monotonic() - began
    share = (after.user + after.system - before.user - before.system) / took_s
    rss = process.memory_info().rss
    assert daemon.end() == 0
    record_property("idle_cpu_share", share)
    record_property("idle_rss_bytes", rss)
    assert rss < IDLE_RSS_LIMIT_BYTES
    assert share < IDLE_CPU_LIMIT


# On SQLite a process frozen in a write keeps the file locked: there is nothing to take over.
@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
def test_nothing_of_a_frozen_or_killed_daemon_lands(site: Site, load: Running) -> None:
    drill = Drill(site, SEED)
    with Watcher(site) as watcher:
        for kind in ("good", "fallback", "good", "exits"):
            drill.run(kind)
    drill.close()
    report = load.end().document
    assert [e.wrong for e in drill.ended] == [None] * 4, drill.ended
    assert watcher.wrong == []
    assert watcher.looks > 100
    lost = [t["failures"].get("before_response") for t in report["targets"].values()]
    assert lost == [None], (SERVICE, report)
