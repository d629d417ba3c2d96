"""Operating releases by the command line: holding, forcing, ending, superseding, going back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from canaryctl.controller.model import Release
from tests.support.artifacts import artifact, first, write, write_load
from tests.support.cli import Cli, Done, Running, eventually
from tests.support.watching import store_of

pytestmark = pytest.mark.timeout(240)

SECRET = "hf_a-secret-that-nobody-may-print"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("operate"), HF_TOKEN_OF_TEST=SECRET)
    done = cli.release(write(folder, first(1)))
    assert done.code == 0, done.err
    load = cli.start("load", "chat", "--profile", write_load(folder))
    yield cli
    load.end()
    removed = cli.run("remove", "chat")
    assert removed.code == 0, removed.err
    assert cli.left_over() == []


def phase(cli: Cli, release: str) -> str:
    with store_of(cli) as store:
        return store.release(release).phase.value


def active(cli: Cli) -> str:
    with store_of(cli) as store:
        found: Release = eventually("an active release", lambda: store.active_release("chat"))
    return found.id


def paused_release(cli: Cli, path: Path) -> tuple[Running, str]:
    """A release in the background that holds at its first step by plan."""
    running = cli.start("release", path, "--json")
    release = active(cli)
    eventually("paused", lambda: phase(cli, release) == "paused", timeout_s=60)
    return running, release


def held(number: int) -> dict[str, Any]:
    steps = [{"weight": 25, "bake": "1s", "pause": True}, {"weight": 50, "bake": "1s"}]
    return artifact("good", number, rollout={"steps": steps})


def ok(done: Done) -> Done:
    assert done.code == 0, done.err + done.out
    return done


def test_pause_resume_and_the_ends_of_a_held_release(cli: Cli, folder: Path) -> None:
    running, release = paused_release(cli, write(folder, held(10)))

    refused = cli.release(write(folder, artifact("good", 11)))
    assert refused.code == 5
    assert release in json.loads(refused.out)["error"]["message"]
    resumed_wrongly = cli.run("resume", "no-such-release")
    assert resumed_wrongly.code == 2

    ok(cli.run("resume", release, "--reason", "looks well"))
    done = running.wait()
    assert done.code == 0, done.err
    events = ok(cli.run("gates", "explain", release)).out
    assert "looks well" in events
    late = cli.run("abort", release)
    assert late.code == 5  # it is final: nothing can be asked of it


def test_abort_and_retry(cli: Cli, folder: Path) -> None:
    running, release = paused_release(cli, write(folder, held(12)))
    ok(cli.run("abort", release, "--reason", "changed my mind"))
    done = running.wait()
    assert done.code == 3, done.err
    assert done.document["rollback_target"] == "previous"
    assert "changed my mind" in done.document["reason"]

    again = cli.start("retry", release, "--reason", "again", "--json")
    second = active(cli)
    assert second != release
    eventually("paused", lambda: phase(cli, second) == "paused", timeout_s=60)
    ok(cli.run("promote", second, "--reason", "by hand"))
    done = again.wait()
    assert done.code == 0, done.err
    assert cli.service()["stable"] == "chat-good@12"


def test_supersede_rolls_the_active_one_back_first(cli: Cli, folder: Path) -> None:
    running, release = paused_release(cli, write(folder, held(13)))
    done = cli.release(write(folder, artifact("good", 14)), "--supersede")
    assert done.code == 0, done.err
    first_one = running.wait()
    assert first_one.code == 3, first_one.err
    assert "supersede" in first_one.document["reason"]
    assert cli.service()["stable"] == "chat-good@14"
    assert phase(cli, release) == "rolled_back"


def test_a_timeout_leaves_it_held_and_another_command_goes_on(cli: Cli, folder: Path) -> None:
    held_one = cli.release(write(folder, held(15)), "--timeout", "6s")
    assert held_one.code == 4, held_one.err
    release = held_one.document["release"]
    assert held_one.document["outcome"] == "held"
    waiting = cli.start("status", release, "--wait", "--json")
    eventually("paused", lambda: phase(cli, release) == "paused", timeout_s=60)
    ok(cli.run("promote", release))
    assert waiting.wait().code == 0
    assert cli.service()["stable"] == "chat-good@15"


def test_going_back_is_a_release_of_its_own(cli: Cli, folder: Path) -> None:
    ok(cli.release(write(folder, artifact("good", 16))))
    back = ok(cli.run("rollback", "chat", "--json", "--reason", "users complain")).document
    assert back["kind"] == "rollback"
    assert cli.service()["stable"] == "chat-good@15"
    hard = {gate["name"] for gate in back["gates"]}
    assert hard == {"oom", "engine_exit", "progress"}

    ok(cli.run("rollback", "chat", "--to", "eager", "--json"))
    assert cli.service()["stable"] == "chat-good@15-eager"
    nothing = cli.run("rollback", "chat", "--to", "eager")
    assert nothing.code == 2
    ok(cli.run("rollback", "chat", "--to", "chat-good@16", "--json"))
    assert cli.service()["stable"] == "chat-good@16"


def test_capacity_comes_before_traffic(cli: Cli, folder: Path) -> None:
    """Two replicas: one canary instance is enough for half the traffic, two for all of it."""
    steps = [{"weight": 50, "bake": "1s"}]
    path = write(folder, artifact("good", 17, rollout={"steps": steps}, replicas=2))
    document = ok(cli.release(path)).document
    at = {entry["phase"]: entry["at"] for entry in document["timeline"]}
    ours = [
        instance["stages"]
        for instance in cli.service()["instances"]
        if instance["id"].startswith(document["release"])
    ]
    one, two = sorted(ours, key=lambda stages: str(stages["started"]))
    assert one["ready"] <= at["progressing"]
    assert at["promoting"] <= two["started"]
    assert two["ready"] <= at["watching"]


def test_a_secret_reaches_the_engine_and_nothing_else(cli: Cli, folder: Path) -> None:
    secrets = {"HF_TOKEN": {"from_env": "HF_TOKEN_OF_TEST"}}
    path = write(folder, artifact("good", 18, secrets=secrets))
    done = ok(cli.release(path))
    release = done.document["release"]
    holders = [
        process
        for process in psutil.process_iter()
        if _environ(process).get("CANARYCTL_INSTANCE", "").startswith(release)
    ]
    assert holders
    assert all(_environ(process)["HF_TOKEN"] == SECRET for process in holders)
    shown = ok(cli.run("artifact", "show", "chat-good@18")).out
    assert SECRET not in done.out + done.err + shown
    for file in cli.state.rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return {}


def test_what_was_released_can_be_looked_at(cli: Cli, folder: Path) -> None:
    listed = ok(cli.run("artifact", "list", "--service", "chat", "--json")).document["artifacts"]
    assert {"chat-good"} == {a["name"] for a in listed}
    changed = write(folder, artifact("good", 18, args={"jitter": 0.2}))
    refused = cli.release(changed)
    assert refused.code == 2
    assert "chat-good@18" in refused.err
    diff = ok(cli.run("artifact", "diff", "chat-good@16", "chat-good@18", "--json")).document
    assert [c["path"] for c in diff["changes"]] == ["engine.args.seed"]
    history = ok(cli.run("history", "chat", "--json")).document["releases"]
    assert len(history) >= 5
    assert ok(cli.run("doctor")).out
    refused_remove = cli.run("remove", "no-such-service")
    assert refused_remove.code == 2


def test_a_history_is_recorded_of_the_stable_engines(cli: Cli, tmp_path: Path) -> None:
    samples, summary = tmp_path / "history.jsonl", tmp_path / "history.json"
    recorded = ok(
        cli.run("gates", "record", "chat", "--for=3s", "--every=1s", "-o", samples, "--json")
    ).document
    assert (recorded["rounds"], recorded["engines"]) == (4, 1)
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(lines) == recorded["lines"]
    assert {"ttft", "tpot", "e2e"} <= {line["signal"] for line in lines}
    assert {line["arm"] for line in lines} == {"baseline"}
    again = cli.run("gates", "record", "chat", "--for=1s", "-o", samples)
    assert again.code == 2
    assert "there already" in again.err
    told = ok(cli.run("gates", "history", samples, "-o", summary))
    assert "of the 60 minutes" in told.err
    # So short a history shows nothing: a release that names it is refused, and not recorded.
    document = artifact("good", 90, rollout={"history": str(summary)})
    refused = cli.release(write(tmp_path, document))
    assert refused.code == 2
    assert "rollout.history" in json.loads(refused.out)["error"]["message"]


CHECKED = [
    {"name": "attestation"},
    {"name": "warmup"},
    {"name": "output_parity", "max_ratio": "5%"},
]


def test_a_runtime_that_is_the_one_declared_says_so(cli: Cli, folder: Path) -> None:
    good = ok(cli.release(write(folder, artifact("good", 40, gates=CHECKED)))).document
    found = {gate["name"]: gate for gate in good["gates"]}
    for name in ("attestation", "warmup", "output_parity"):
        assert found[name]["outcome"] == "passed", found[name]["reason"]
    (instance,) = cli.service()["instances"]
    assert instance["facts"]["attested"]["model_revision"] == "simulated-1"


# What engines with such a fault say themselves that they ran.
OTHER = {
    "other_revision": ("model_revision", "another-than-simulated-1"),
    "mode_downgraded": ("graph_mode", "PIECEWISE"),
}
SLOW_START = [{"name": "ready_time", "max_seconds": "5s"}]


@pytest.mark.parametrize(
    ("number", "args", "gates", "says"),
    [
        (
            41,
            {"fault": "other_revision"},
            CHECKED,
            "model_revision: declared simulated-1, attested another-than",
        ),
        (
            42,
            {"fault": "wrong_output"},
            CHECKED,
            "output_parity: 96 of 96 prompts are answered otherwise",
        ),
        (43, {"fault": "eager_fallback"}, CHECKED, "warmup: warmed and not replayed:"),
        (
            44,
            {"fault": "grid_reduced"},
            CHECKED,
            "readiness: the captured grid [1, 2] lacks capture sizes 4, 8",
        ),
        (
            46,
            {"fault": "mode_downgraded"},
            CHECKED,
            "graph_mode: declared FULL_AND_PIECEWISE, attested PIECEWISE (by its log: CUDA",
        ),
        (
            45,
            {"fault": "slow_capture", "fault_factor": 1500},
            SLOW_START,
            "(allowed 5 s); most of it by capture, which took",
        ),
    ],
)
def test_a_runtime_that_is_another_is_refused_before_any_traffic(
    cli: Cli,
    folder: Path,
    number: int,
    args: dict[str, Any],
    gates: list[dict[str, Any]],
    says: str,
) -> None:
    made = artifact("good", number, args=args, gates=gates)
    bad = cli.release(write(folder, made))
    assert bad.code == 3, bad.err
    assert says in bad.document["reason"]
    assert "progressing" not in {entry["phase"] for entry in bad.document["timeline"]}
    other = OTHER.get(args["fault"])
    if other is not None:
        name, value = other
        differs = cli.run("artifact", "diff", "chat-good@1", f"chat-good@{number}", "--json")
        ran = {change["name"]: change for change in differs.document["ran"]["changes"]}
        assert ran[name]["after"] == value


def test_a_graph_that_is_captured_in_front_of_a_user_fails_warmup(cli: Cli, folder: Path) -> None:
    # Slow steps, so that more decode together than the warm-up plan has; without parity, whose
    # own requests would have every graph captured.
    late = {"fault": "late_capture", "step_scale": 20}
    bad = cli.release(write(folder, artifact("good", 60, args=late, gates=[{"name": "warmup"}])))
    assert bad.code == 3, bad.err
    said = "warmup: not all was warm: after it was ready, with requests waiting"
    assert said in bad.document["reason"]
    assert "graph of bucket" in bad.document["reason"]


def test_a_runtime_of_which_nothing_is_seen_is_held_and_goes_back(cli: Cli, folder: Path) -> None:
    made = artifact(
        "good",
        47,
        args={"fault": "missing_metrics"},
        gates=[{"name": "warmup"}],
        rollout={"progress_deadline": "20s"},
    )
    bad = cli.release(write(folder, made))
    assert bad.code == 3, bad.err
    assert bad.document["reason"].startswith(
        "deadline: undecided at the deadline: warmup: inconclusive, no steps from the canary: "
        "canaryctl_engine_steps_total is absent"
    )
