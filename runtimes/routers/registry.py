"""Routers by name. Adding one is a module with a class that satisfies Router, and a line here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from canaryctl.common.errors import UnknownNameError
from canaryctl.runtimes.routers.base import Router
from canaryctl.runtimes.routers.envoy import EnvoyRouter


class RouterFactory(Protocol):
    def __call__(self, state_dir: Path) -> Router: ...


ROUTERS: Mapping[str, RouterFactory] = {EnvoyRouter.name: EnvoyRouter}


def router(name: str, state_dir: Path) -> Router:
    """The router called ``name``, with its files below ``state_dir``."""
    if name not in ROUTERS:
        raise UnknownNameError("router", name, ROUTERS)
    return ROUTERS[name](state_dir)
