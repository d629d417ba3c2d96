"""``max_concurrency`` with ``confirm: saturation``, by the command line: canaries are driven to the
concurrency that they have to hold before any user's request reaches them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from canaryctl.common.metrics import Signal
from canaryctl.gates.readings import series
from canaryctl.gates.samples import Missing
from tests.support.artifacts import artifact, first, write, write_load
from tests.support.cli import Cli
from tests.support.watching import store_of

pytestmark = pytest.mark.timeout(300)

GATES = [
    {"name": "error_rate", "max_ratio": "20%"},
    {"name": "progress", "max_seconds": "5s"},
    {"name": "max_concurrency", "max_regression": "50%", "confirm": "saturation"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("driven"))
    done = cli.release(write(folder, first(1)))
    assert done.code == 0, done.err
    load = cli.start("load", "chat", "--profile", write_load(folder), "--json")
    yield cli
    report = load.end().document
    assert report["failed"] == 0, report
    removed = cli.run("remove", "chat")
    assert removed.code == 0, removed.err
    assert cli.left_over() == []


def gate(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(g for g in document["gates"] if g["name"] == "max_concurrency")
    return found


def replayed(cli: Cli, release: str) -> None:
    again = cli.run("gates", "replay", release)
    assert again.code == 0, again.out + again.err


def test_a_cache_that_is_smaller_than_it_says_never_sees_a_user(cli: Cli, folder: Path) -> None:
    """Each of the 32 would fit by what the engine says of itself; a fiftieth of its cache holds
    fewer."""
    lies = {"fault": "overstated_kv", "fault_factor": 50}
    done = cli.release(write(folder, artifact("good", 2, args=lies, gates=GATES)))
    assert done.code == 3, done.err + done.out
    found = gate(done.document)
    assert done.document["reason"].startswith("max_concurrency"), done.document["reason"]
    assert found["outcome"] == "failed"
    assert "driven at 32 at once" in found["reason"]
    assert "were not held; at most 1 % may" in found["reason"]
    assert "progressing" not in {step["phase"] for step in done.document["timeline"]}
    replayed(cli, done.document["release"])


def test_an_equal_one_is_confirmed_and_promoted(cli: Cli, folder: Path) -> None:
    done = cli.release(write(folder, artifact("good", 3, gates=GATES)))
    assert done.code == 0, done.err + done.out
    found = gate(done.document)
    assert found["outcome"] == "passed"
    assert "driven at 32 at once, 0 % of" in found["reason"]
    store = store_of(cli)
    try:
        looks = [record.look for record in store.looks(done.document["release"])]
    finally:
        store.close()
    driven = [look for look in looks if look.saturation is not None]
    assert len(driven) == 1
    # 32 at a time drove it, and none of them is in a window.
    requests = series(driven[0].canary, Signal.REQUESTS, "canary")
    assert not isinstance(requests, Missing)
    assert sum(requests.values()) < 32
    replayed(cli, done.document["release"])
