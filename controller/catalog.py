"""Artifacts and their engine adapters, by digest. Both never change, so both are remembered."""

from collections.abc import Callable
from typing import Protocol

from canaryctl.controller.artifact.digest import digest_of
from canaryctl.controller.model import Artifact
from canaryctl.runtimes.engines.base import Engine


class Artifacts(Protocol):
    """Where artifacts are looked up: the store."""

    def artifact(self, ref: str, /) -> Artifact: ...


class Catalog:
    def __init__(self, store: Artifacts, engine: Callable[[str], Engine]) -> None:
        self._store, self._engine = store, engine
        self._artifacts: dict[str, Artifact] = {}
        self._engines: dict[str, Engine] = {}

    def artifact(self, digest: str) -> Artifact:
        if digest not in self._artifacts:
            self._artifacts[digest] = self._store.artifact(digest)
        return self._artifacts[digest]

    def engine(self, digest: str) -> Engine:
        """The adapter of the artifact's engine; an unknown engine raises."""
        name = self.artifact(digest).runtime.engine.name
        if name not in self._engines:
            self._engines[name] = self._engine(name)
        return self._engines[name]

    def eager_digest(self, digest: str) -> str | None:
        """The digest of the same runtime with graphs off; None: it has none already."""
        runtime = self.artifact(digest).runtime
        return digest_of(self.engine(digest).eager(runtime)) if runtime.uses_graphs else None
