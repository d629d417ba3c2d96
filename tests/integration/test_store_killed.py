"""A writer that is killed at any moment leaves whole transactions behind and no lock."""

import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

from canaryctl.controller.model import Fault
from canaryctl.controller.store import open_store
from canaryctl.runtimes.engines.base import EngineFault

WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from canaryctl.controller.model import Artifact, GateRecord, ReleaseEvent
from canaryctl.controller.states import Phase, Trigger, advance
from canaryctl.controller.store import open_store
from canaryctl.gates.outcome import GateResult, Outcome
from tests.support.releases import T0, document, release

store = open_store(SimpleNamespace(database_url=sys.argv[1], state_dir=Path()))
fence = store.acquire("controller", sys.argv[2], 600, T0)
active = store.active_release("chat")
if active is None:
    text = document()
    digest = "sha256:" + "b" * 64
    store.register_artifact(Artifact(digest, text.name, text.version, "chat", text.runtime, T0))
    store.ensure_service("chat", lambda: 8100, T0)
    new = replace(release(Phase.PENDING), revision=0, previous_digest=None, weight=0)
    active = store.create_release(new, now=T0, actor="ann")
moves = {
    Phase.PENDING: Trigger.START, Phase.PREFLIGHT: Trigger.CHECKED,
    Phase.DEPLOYING: Trigger.DEPLOYED, Phase.WARMING: Trigger.WARM,
    Phase.PROGRESSING: Trigger.PAUSE, Phase.PAUSED: Trigger.RESUME,
}
print("writing", flush=True)
while True:
    trigger = moves[active.phase]
    result = GateResult("oom", Outcome.PASSED, str(active.revision + 1))
    active = store.commit(
        replace(active, phase=advance(active.phase, trigger), weight=active.revision % 101),
        [ReleaseEvent("", 0, T0, "phase", str(active.revision + 1), trigger=trigger)],
        fence=fence,
        now=T0,
        gates=[GateRecord(active.id, "oom", T0, {"n": active.revision + 1}, result)],
    )
"""
KILLS = 3


def test_a_killed_writer_leaves_whole_transactions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/canaryctl.db"
    seen = -1
    for kill in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, url, "same holder"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        time.sleep(0.05 + 0.0237 * kill)
        writer.kill()
        writer.wait()
        writer.stdout.close()
        with open_store(SimpleNamespace(database_url=url, state_dir=Path())) as store:
            release = store.active_release("chat")
            assert release is not None
            assert release.revision > seen  # it goes on where it was
            seen = release.revision
            log = store.events(release.id)
            assert [event.seq for event in log] == list(range(1, seen + 2))
            assert [event.message for event in log[1:]] == [str(n) for n in range(1, seen + 1)]
            assert store.replay_phase(release.id) is release.phase
            (record,) = store.gate_records(release.id)
            assert (record.state, record.result.reason) == ({"n": seen}, str(seen))
            said = "no lock is left"
            store.add_fault(Fault(release.id, f"i{kill}", EngineFault.OOM, datetime.now(UTC), said))
