"""``rollout.history``: read once, when the release is recorded, and kept with it."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import Signal
from canaryctl.controller.artifact.digest import digest_of
from canaryctl.controller.artifact.loader import LoadedArtifact
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.cli import main
from canaryctl.controller.samplefiles import load_history
from canaryctl.controller.store import Store, open_store
from canaryctl.controller.submit import Submitter
from canaryctl.gates.history import AaHistory, Dependence
from canaryctl.gates.outcome import Outcome
from canaryctl.runtimes.engines.registry import engine
from tests.support.artifacts import artifact
from tests.support.judging import judged
from tests.support.releases import T0
from tests.support.stored import end

CALM = AaHistory(
    15.0,
    3600.0,
    {(Signal.TTFT, p): Dependence(1.0, 1.2, 1, 6, 12) for p in (0.99, 0.95, 0.9, 0.5)},
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    settings = SimpleNamespace(database_url=f"sqlite:///{tmp_path}/c.db", state_dir=tmp_path)
    with open_store(settings) as store:
        yield store


def loaded(folder: Path, history: str | None) -> LoadedArtifact:
    document = ArtifactDocument.model_validate(artifact("good", 1, rollout={"history": history}))
    return LoadedArtifact(document, digest_of(document.runtime), "", folder)


def test_the_file_may_vanish_and_a_retry_has_the_same(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "aa.json"
    file.write_text(json.dumps(CALM.as_document()))
    submitter = Submitter(store, engine, lambda: 8000)
    first = submitter.release(loaded(tmp_path, "aa.json"), actor="ann", now=T0)
    file.unlink()
    terms = store.gate_terms(first.id)
    assert terms is not None
    assert terms.context.history == CALM
    fence = store.acquire("controller", "one", 60, T0)
    assert fence is not None
    end(store, first, replace(fence))
    second = submitter.retry(store.release(first.id), actor="ann", reason="", now=T0)
    again = store.gate_terms(second.id)
    assert again is not None
    assert again.context.history == CALM
    assert list(store.looks(second.id)) == []
    assert store.gate_records(second.id) == ()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (None, "cannot be read"),
        ("{", "no JSON"),
        (json.dumps({**CALM.as_document(), "version": 9}), "version 9"),
        (json.dumps({**CALM.as_document(), "span_s": 60.0}), "spans 1 of the 60 minutes"),
    ],
)
def test_a_file_that_says_nothing_is_refused_before_anything_is_recorded(
    store: Store, tmp_path: Path, written: str | None, said: str
) -> None:
    if written is not None:
        (tmp_path / "aa.json").write_text(written)
    submitter = Submitter(store, engine, lambda: 8000)
    with pytest.raises(InputError, match=f"rollout.history: .*{said}"):
        submitter.release(loaded(tmp_path, "aa.json"), actor="ann", now=T0)
    assert store.services() == ()


def test_with_it_a_release_is_proven_and_replays(tmp_path: Path) -> None:
    draws = random.Random(3)
    with judged(tmp_path, {"name": "ttft_p90", "max_regression": "10%"}, history=CALM) as run:
        for _ in range(240):
            for _ in range(120):
                run.baseline.answer(draws.lognormvariate(-1.7, 0.45))
                run.canary.answer(draws.lognormvariate(-1.7, 0.45))
            found = run.tick()
            [ttft] = [r for r in found.verdict.results if r.name == "ttft_p90"]
            if ttft.outcome is Outcome.PASSED:
                break
        assert ttft.outcome is Outcome.PASSED
        run.restart()
        run.tick()
        assert run.replay().agrees


def test_the_command_line_judges_and_summarises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draws = random.Random(1)
    samples, past = tmp_path / "samples.jsonl", tmp_path / "past.jsonl"
    _write(samples, [("baseline", "b0", 1.0), ("canary", "c0", 1.6)], 120, draws)
    _write(past, [("baseline", f"h{n}", 1.0) for n in range(5)], 242, draws)
    summary = tmp_path / "past.json"
    assert main(["gates", "history", str(past), "--signal", "ttft", "-o", str(summary)]) == 0
    assert "p90" in capsys.readouterr().out
    assert load_history(summary) == load_history(past, Signal.TTFT)
    ask = ["gates", "judge", str(samples), "--gate", "ttft_p90", "--max-regression", "10%"]
    documents = []
    for history in ([], ["--history", str(past)], ["--history", str(summary)]):
        assert main([*ask, *history, "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert [d["outcome"] for d in documents] == ["failed"] * 3
    assert documents[1] == documents[2]
    assert documents[1]["decided_at"] < documents[0]["decided_at"]
    assert main(ask) == 0
    assert "ttft_p90 failed at" in capsys.readouterr().out
    for wrong in (
        ["--alpha", "1"],
        ["--margin", "x"],
        ["--gate", "nonsense"],
        ["--history", str(tmp_path / "none")],
        ["--gates-total", "0"],
    ):
        assert main([*ask, *wrong]) == 2, wrong
    samples.write_text(samples.read_text() + "{\n")
    assert main(ask) == 2
    assert "line 241: no JSON" in capsys.readouterr().err


def test_a_recording_that_cannot_begin_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CANARYCTL_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "history.jsonl"
    ask = ["gates", "record", "nobody", "-o", str(file)]
    for wrong in ([], ["--every", "1ms"], ["--for", "soon"]):
        assert main([*ask, *wrong]) == 2
    told = capsys.readouterr().err
    assert "nobody" in told
    assert "500ms" in told or "0.5s" in told
    assert not file.exists()


def _write(
    file: Path, engines: list[tuple[str, str, float]], looks: int, draws: random.Random
) -> None:
    edges = [0.02 * 1.1 ** (k / 2) for k in range(100)]
    counts: dict[str, list[int]] = {name: [0] * len(edges) for _, name, _ in engines}
    totals = dict.fromkeys(counts, 0)
    lines: list[str] = []
    for look in range(looks):
        for arm, name, slower in engines:
            for _ in range(30):
                latency_s = draws.lognormvariate(-1.7, 0.45) * slower
                totals[name] += 1
                counts[name] = [
                    c + (latency_s <= e) for c, e in zip(counts[name], edges, strict=True)
                ]
            buckets: dict[str, Any] = {
                **dict(zip(map(str, edges), counts[name], strict=True)),
                "+Inf": totals[name],
            }
            line = {"at": 15.0 * look, "arm": arm, "instance": name, "buckets": buckets}
            lines.append(json.dumps(line))
    file.write_text("\n".join(lines) + "\n")
