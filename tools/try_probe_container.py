"""Runs the probe from a read-only mount in a container, with a real engine (vLLM on CPUs).

    python -m tools.try_probe_container        (once before: tools/install-cpu-vllm)

The container is of an empty image: its root is read-only, and the engine's environment, the
libraries of this host and the probe's folder are mounted read-only, as docs/probe.md says it. It
makes tokens and holds the probe's series against the engine's own counters, exactly. Needs Linux
and docker; where no daemon answers and this user may, one is started for the time of the test.
"""

import contextlib
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from canaryctl.runtimes.engines.vllm import PROBE, VllmEngine
from canaryctl.runtimes.placements.process import ProcessPlacement
from tests.support.cpu_vllm import INSTALL, ROOT, VERSION, cpu_runtime, venv

MOUNT = "/opt/canaryctl-probe"
IMAGE = "canaryctl-nothing"
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache")
READY_S = 300
LENGTHS = (1, 8, 30, 30)  # tokens to generate, one request each, at once


class Docker:
    """The command line of one daemon."""

    def __init__(self, host: str | None = None) -> None:
        self._env = {**os.environ, **({"DOCKER_HOST": host} if host else {})}

    def __call__(self, *args: str, text: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            ["docker", *args],
            input=text,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise SystemExit(f"docker {args[0]}: {(done.stderr or done.stdout).strip()}")
        return done.stdout + done.stderr

    @property
    def answers(self) -> bool:
        return "Server Version" in self("info", check=False)


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[Docker]:
    """The daemon that answers here, else one of its own: no bridge, no rules of a firewall."""
    docker = Docker()
    if docker.answers:
        yield docker
        return
    host = f"unix://{folder}/docker.sock"
    with (folder / "dockerd.log").open("wb") as log:
        started = subprocess.Popen(
            [
                *("dockerd", f"--host={host}", f"--data-root={folder}/data"),
                *(f"--exec-root={folder}/exec", f"--pidfile={folder}/dockerd.pid"),
                *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
                "--storage-driver=vfs",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        docker, until = Docker(host), time.monotonic() + 30
        while not docker.answers:
            if started.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"no docker: {(folder / 'dockerd.log').read_text()[-500:]}")
            time.sleep(0.2)
        yield docker
    finally:
        started.terminate()
        started.wait(30)
        network = folder / "exec" / "netns" / "default"  # it leaves this mounted
        if network.exists():
            subprocess.run(["umount", network], check=True)


def engine_options(model: Path, port: int) -> tuple[list[str], Sequence[str]]:
    """(options of ``docker run``, command): the adapter's own, the probe's folder mounted."""
    spec = cpu_runtime(venv() / "bin" / "python", model)
    launch = VllmEngine().launch(spec, host="127.0.0.1", port=port)
    if launch.pythonpath != (str(PROBE),):
        raise SystemExit(f"found the path {launch.pythonpath}, expected the probe's folder alone")
    env = {**launch.env, "PYTHONPATH": MOUNT, "HOME": "/tmp", "PATH": "/usr/bin:/bin"}  # noqa: S108
    python = (venv() / "bin" / "python").resolve().parents[1]  # that the environment is made of
    mounts = {path: path for path in SYSTEM if Path(path).exists()}
    mounts |= {str(python): str(python), str(venv()): str(venv()), str(model): str(model)}
    mounts |= {str(venv().resolve()): str(venv().resolve()), str(PROBE): MOUNT}
    options = ["--read-only", "--tmpfs=/tmp:exec", "--shm-size=1g", "--network=host"]
    options += [f"--volume={here}:{there}:ro" for here, there in mounts.items()]
    options += [f"--env={name}={value}" for name, value in env.items()]
    return options, launch.argv


def wait_until_healthy(docker: Docker, container: str, url: str) -> None:
    until = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=2).status_code == httpx.codes.OK:
                return
        state = docker("inspect", "--format={{.State.Running}}", container).strip()
        if state != "true" or time.monotonic() > until:
            raise SystemExit(f"the engine is not ready:\n{docker('logs', container)[-3000:]}")
        time.sleep(0.5)


def generate(url: str, tokens: int) -> int:
    body = {"model": "chat", "prompt": "x" * 20, "max_tokens": tokens, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    answer.raise_for_status()
    return int(answer.json()["usage"]["completion_tokens"])


def sums(page: str) -> Mapping[str, float]:
    """Family → the sum of its series."""
    found: dict[str, float] = {}
    for name, value in re.findall(r"^([a-z_:0-9]+)(?:\{.*\})? (\S+)$", page, re.MULTILINE):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def faults(page: str, made: int) -> list[str]:
    """What of the page is not as it must be after ``LENGTHS`` were generated."""
    found = sums(page)
    own = (
        found["vllm:prompt_tokens_total"]
        + found["vllm:generation_tokens_total"]
        - found["vllm:request_success_total"]  # a last token is no step's input
        - found["vllm:prefix_cache_hits_total"]
    )
    expected = {
        "vllm:generation_tokens_total": made,
        "canaryctl_tokens_actual_total": own,
        "canaryctl_tokens_padded_total": own,  # without graphs nothing is padded
        "canaryctl_ttft_seconds_count": len(LENGTHS),
        "canaryctl_itl_seconds_count": made - len(LENGTHS),
        "canaryctl_attestation_info": 1,
        "canaryctl_probe_errors_total": 0,
    }
    return [
        f"{name} is {found.get(name, 'absent')}, expected {value:g}"
        for name, value in expected.items()
        if found.get(name) != value
    ]


def counted(docker: Docker, container: str, url: str) -> tuple[str, list[str]]:
    """The page of an engine that made ``LENGTHS`` tokens, and what of it and of the mounts is
    not as it must be."""
    wait_until_healthy(docker, container, url)
    with ThreadPoolExecutor(len(LENGTHS)) as pool:
        made = sum(pool.map(lambda tokens: generate(url, tokens), LENGTHS))
    time.sleep(0.5)  # a step is counted a moment after its tokens were sent
    page = httpx.get(f"{url}/metrics", timeout=10).text
    found = faults(page, made)
    wrote = docker("exec", container, "touch", f"{MOUNT}/x", check=False)
    if "Read-only file system" not in wrote:
        found.append(f"{MOUNT} could be written to: {wrote.strip()!r}")
    mounts = json.loads(docker("inspect", "--format={{json .Mounts}}", container))
    return page, found + [f"{m['Destination']} is not read-only" for m in mounts if m["RW"]]


def main() -> int:
    if not (venv() / ".complete").exists():
        raise SystemExit(f"no CPU vLLM in {venv()}: run {INSTALL}")
    with tempfile.TemporaryDirectory(prefix="canaryctl-container-") as name:
        folder = Path(name)
        model, nothing = folder / "tiny", folder / "nothing.tar"
        runpy.run_path(str(ROOT / "tools" / "random_model.py"))["write_model"](model, tiny=True)
        subprocess.run(["tar", "-cf", nothing, "--files-from=/dev/null"], check=True)
        with daemon(folder) as docker:
            docker("import", str(nothing), IMAGE)
            port = ProcessPlacement(folder / "state").free_port()
            options, command = engine_options(model, port)
            say("docker run", *options, IMAGE, *command)
            container = docker("run", "--detach", *options, IMAGE, *command).strip()
            try:
                page, found = counted(docker, container, f"http://127.0.0.1:{port}")
            finally:
                docker("rm", "--force", container)
                docker("rmi", IMAGE)
    steps = re.compile(r"canaryctl_(engine_steps|tokens_(actual|padded))_total")
    say(*(line for line in page.splitlines() if steps.match(line)), sep="\n")
    say(*(found or [f"vLLM {VERSION}: every count exact, {MOUNT} read-only"]), sep="\n")
    return 1 if found else 0


def say(*words: str, sep: str = " ") -> None:
    sys.stdout.write(sep.join(words) + "\n")


if __name__ == "__main__":
    sys.exit(main())
