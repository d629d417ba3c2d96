"""docker-compose.yml: what the compose tool says of it, and what it must not hold."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from canaryctl.controller.settings import VARIABLES, Settings

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
PASSWORD = "POSTGRES_PASSWORD"


def tool() -> list[str]:
    """The compose tool, as a plugin of docker or by itself."""
    plugin = ["docker", "compose"]
    if shutil.which("docker") is not None:
        found = subprocess.run([*plugin, "version"], capture_output=True, check=False)
        if found.returncode == 0:
            return plugin
    if shutil.which("docker-compose") is not None:
        return ["docker-compose"]
    what = "no compose tool; run tools/test-services as root, or install docker-compose"
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


def config(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != PASSWORD}
    return subprocess.run(
        [*tool(), "--file", str(FILE), *options],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    """As written, with every variable unresolved."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
    return found


def test_the_compose_tool_accepts_it(services: dict[str, dict[str, Any]]) -> None:
    done = config("--profile", "simulated", "config", POSTGRES_PASSWORD="only-here")
    assert done.returncode == 0, done.stderr
    resolved = yaml.safe_load(done.stdout)["services"]
    assert resolved.keys() == services.keys()
    assert [n for n, service in services.items() if "profiles" in service] == ["simulated"]


def test_without_a_password_it_says_what_to_set() -> None:
    done = config("config", "--quiet")
    assert done.returncode != 0
    assert "set it to the password" in done.stderr


def test_it_holds_no_secret(services: dict[str, dict[str, Any]]) -> None:
    found = [
        value
        for service in services.values()
        for name, value in service.get("environment", {}).items()
        if any(word in name for word in ("PASSWORD", "TOKEN", "SECRET", "KEY"))
    ]
    assert len(found) >= 2
    assert all(value.startswith(f"${{{PASSWORD}:?") for value in found)


def test_what_stays_up_has_a_health_check(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert ("test" in service["healthcheck"]) == (name != "simulated"), name


def test_files_and_settings_that_it_names_exist(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (ROOT / source).is_file(), source
    text = FILE.read_text()
    for example in ("stable", "good", "load"):
        assert f"examples/quickstart/{example}.yaml" in text
        assert (ROOT / f"examples/quickstart/{example}.yaml").is_file()
    settings = {
        name: value
        for name, value in services["controller"]["environment"].items()
        if name.startswith("CANARYCTL_")
    }
    assert settings.keys() <= VARIABLES.keys()
    read = Settings.from_environment({"HOME": "/", **settings})
    assert read.router_ports is not None
    published = services["controller"]["ports"][0]
    assert f"{read.router_ports[0]}-{read.router_ports[-1]}" in published


def test_the_image_takes_its_base_by_name_and_all_that_it_copies_is_let_in() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "ARG PYTHON_IMAGE=python:3.11-slim\nFROM ${PYTHON_IMAGE}\n" in dockerfile
    let_in = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    ]
    assert {"common", "controller", "gates", "migrations", "runtimes"} <= set(let_in)
    assert all((ROOT / name).exists() for name in let_in)
