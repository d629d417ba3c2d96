"""What every placement promises, tried on each one there is, with real processes."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from canaryctl.common.errors import InputError, UnknownNameError
from canaryctl.runtimes.engines.base import FILES, Launch
from canaryctl.runtimes.placements.base import Handle, InstanceRequest, Liveness, Placement
from canaryctl.runtimes.placements.registry import PLACEMENTS, placement

DIGEST = "sha256:" + "a" * 64
OTHER_DIGEST = "sha256:" + "b" * 64

SERVER = """
import os, sys, http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        body = repr(dict(os.environ)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
print("listening", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.fixture(params=sorted(PLACEMENTS))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Placement]]:
    """A placement on the same state each time it is called, as after a restart."""
    made: list[Placement] = []

    def make() -> Placement:
        made.append(placement(request.param, tmp_path))
        return made[-1]

    yield make
    for place in made:
        wait_for(partial(place.stop, "one", DIGEST, None, grace_s=0))


@pytest.fixture
def place(make: Callable[[], Placement]) -> Placement:
    return make()


def wait_for(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def request_for(
    place: Placement, code: str = SERVER, secrets: Mapping[str, str] | None = None
) -> InstanceRequest:
    port = place.free_port()
    return InstanceRequest(
        instance="one",
        digest=DIGEST,
        launch=Launch(argv=(sys.executable, "-c", code, str(port))),
        port=port,
        secrets=secrets or {},
    )


def answer(url: str) -> str:
    deadline = time.monotonic() + 10
    while True:
        try:
            return httpx.get(url, timeout=2, trust_env=False).text
        except httpx.HTTPError:
            assert time.monotonic() < deadline, "nothing answers"
            time.sleep(0.02)


def test_an_unknown_placement_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="process"):
        placement("mainframe", tmp_path)


def test_it_runs_what_was_asked_where_base_url_says(place: Placement) -> None:
    request = request_for(place)
    assert place.status("one", DIGEST, None).liveness is Liveness.ABSENT
    handle = place.ensure(request)
    assert (handle.instance, handle.digest, handle.port) == ("one", DIGEST, request.port)
    assert DIGEST in answer(place.base_url(handle))
    assert place.status("one", DIGEST, handle).liveness is Liveness.RUNNING
    assert place.log_path("one").read_text() == "listening\n"
    assert handle.log_path == str(place.log_path("one"))


def test_files_are_there_before_it_starts_and_argv_says_where(place: Placement) -> None:
    code = "import pathlib, sys; print(*(pathlib.Path(word).read_text() for word in sys.argv[1:]))"
    launch = Launch(
        argv=(sys.executable, "-c", code, f"{FILES}/a.yaml", f"{FILES}/started.json"),
        files={"a.yaml": "one: 1", "started.json": "the engine's own"},
    )
    request = dataclasses.replace(request_for(place), launch=launch)
    handle = place.ensure(request)
    wait_for(lambda: place.status("one", DIGEST, handle).liveness is Liveness.EXITED)
    assert place.log_path("one").read_text() == "one: 1 the engine's own\n"
    assert place.ensure(request) == handle, "what is known of the instance is not written over"


def test_argv_stays_as_it_is_where_there_are_no_files(place: Placement) -> None:
    code = "import sys; print(sys.argv[1])"
    launch = Launch(argv=(sys.executable, "-c", code, f"{FILES}/x"))
    handle = place.ensure(dataclasses.replace(request_for(place), launch=launch))
    wait_for(lambda: place.status("one", DIGEST, handle).liveness is Liveness.EXITED)
    assert place.log_path("one").read_text() == f"{FILES}/x\n"


@pytest.mark.parametrize("name", ["", "..", "a/b.yaml", "/etc/x.yaml", ".hidden", "lock"])
def test_a_file_that_leaves_its_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="file name"):
        Launch(argv=("x",), files={name: ""})


def test_a_handle_survives_json(place: Placement) -> None:
    handle = place.ensure(request_for(place))
    stored = Handle(**json.loads(json.dumps(dataclasses.asdict(handle))))
    assert stored == handle
    assert place.status("one", DIGEST, stored).liveness is Liveness.RUNNING


def test_ensure_is_idempotent_also_across_a_restart(
    make: Callable[[], Placement], place: Placement
) -> None:
    request = request_for(place)
    handle = place.ensure(request)
    assert place.ensure(request) == handle
    after_restart = make()
    again = after_restart.ensure(request)
    assert (again.pid, again.port) == (handle.pid, handle.port)
    found = after_restart.status("one", DIGEST, None)
    assert found.liveness is Liveness.RUNNING
    assert found.handle is not None
    assert (found.handle.pid, found.handle.port) == (handle.pid, handle.port)


def test_two_at_once_start_one(make: Callable[[], Placement], place: Placement) -> None:
    request = request_for(place)
    with ThreadPoolExecutor(4) as pool:
        handles = list(pool.map(lambda made: made.ensure(request), [place, place, make(), make()]))
    assert len({handle.pid for handle in handles}) == 1


def test_another_artifact_is_never_taken_for_it(place: Placement) -> None:
    handle = place.ensure(request_for(place))
    assert place.status("one", OTHER_DIGEST, None).liveness is Liveness.ABSENT
    assert place.stop("one", OTHER_DIGEST, None, grace_s=0)
    assert place.status("one", DIGEST, handle).liveness is Liveness.RUNNING
    with pytest.raises(ValueError, match="expected the handle of"):
        place.status("one", OTHER_DIGEST, handle)


def test_an_engine_of_another_controllers_state_is_never_taken_for_it(
    place: Placement, tmp_path: Path
) -> None:
    handle = place.ensure(request_for(place))
    another = PLACEMENTS[place.name](tmp_path / "another")
    assert another.status("one", DIGEST, None).liveness is Liveness.ABSENT
    assert another.stop("one", DIGEST, None, grace_s=0)
    assert place.status("one", DIGEST, handle).liveness is Liveness.RUNNING


def test_an_exit_is_seen_with_its_code_and_not_repaired(
    make: Callable[[], Placement], place: Placement
) -> None:
    request = request_for(place, "import sys; print('bye'); sys.exit(3)")
    handle = place.ensure(request)
    wait_for(lambda: place.status("one", DIGEST, handle).liveness is Liveness.EXITED)
    assert place.status("one", DIGEST, handle).exit_code == 3
    for other in (place, make()):
        assert other.ensure(request).pid == handle.pid
        status = other.status("one", DIGEST, None)
        assert status.liveness is Liveness.EXITED
    assert place.log_path("one").read_text() == "bye\n"


def test_stop_ends_it_and_can_be_repeated(place: Placement) -> None:
    handle = place.ensure(request_for(place))
    wait_for(lambda: place.stop("one", DIGEST, handle, grace_s=5))
    assert place.status("one", DIGEST, handle).liveness is Liveness.EXITED
    assert place.stop("one", DIGEST, handle, grace_s=5)
    assert place.stop("two", DIGEST, None, grace_s=5), "what never ran is stopped"


def test_secrets_reach_the_engine_and_nothing_else(place: Placement, tmp_path: Path) -> None:
    request = request_for(place, secrets={"HF_TOKEN": "hf_verysecret"})
    handle = place.ensure(request)
    assert "hf_verysecret" in answer(place.base_url(handle))
    assert "hf_verysecret" not in repr(request) + repr(handle)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"hf_verysecret" in path.read_bytes()]


def test_ports_are_free_and_differ(place: Placement) -> None:
    ports = {place.free_port() for _ in range(50)}
    assert len(ports) == 50
    assert all(1024 < port < 65536 for port in ports)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc", ".hidden", "a" * 200])
def test_a_name_that_leaves_its_folder_is_refused(place: Placement, name: str) -> None:
    with pytest.raises(InputError, match="instance name"):
        place.log_path(name)
