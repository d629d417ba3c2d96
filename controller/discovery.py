"""A file for Prometheus's file discovery: every engine that runs, with the labels by which its
samples are found again.

It is made from the store alone, whole, and replaced at once, so that whichever controller writes
it last writes the same.
"""

import json
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from canaryctl.common.errors import TemporaryError
from canaryctl.controller.model import Instance, InstanceState, Release
from canaryctl.controller.store import Store
from canaryctl.runtimes.placements.base import Handle

REFRESH_S: Final = 2.0
"""Other services come and go too; whoever ticks looks after the file this often."""

_DEFAULT_PAGE: Final = "/metrics"  # Prometheus's own
_SCRAPED = frozenset({InstanceState.STARTING, InstanceState.READY})


def targets_path(state_dir: Path) -> Path:
    """Where the file is."""
    return state_dir / "prometheus" / "targets.json"


def instance_labels(
    instance: Instance, release: Release | None, stable_pool: str | None
) -> dict[str, str]:
    """The labels of an instance's series. ``release``: the service's active one, if any.

    ``release`` among them is the one that made the instance, so that it does not change when
    another one begins. ``role`` does: canary, baseline (beside a canary and not stable), stable,
    retired.
    """
    if instance.pool == stable_pool:
        role = "stable"
    elif release is None:
        role = "retired"
    else:
        role = "canary" if instance.pool == release.pool else "baseline"
    return {
        "service": instance.service,
        "artifact": instance.digest,
        "release": instance.pool.split(".", 1)[0],
        "role": role,
        "instance": instance.id,
    }


def judged_labels(instance: Instance, release: Release) -> Mapping[str, str]:
    """The same while ``release`` is active and judged."""
    return instance_labels(instance, release, release.previous_pool)


class TargetsFile:
    """Keeps the file at ``path``. ``base_url``: where a started instance listens;
    ``metrics_path``: where the engine of an artifact, by digest, has its metrics page."""

    def __init__(
        self,
        path: Path,
        store: Store,
        base_url: Callable[[Handle], str],
        metrics_path: Callable[[str], str],
    ) -> None:
        self._path, self._store, self._base_url = path, store, base_url
        self._metrics_path = metrics_path
        self._seen: Hashable = None
        self._made_at: datetime | None = None

    def update(self, seen: Hashable, now: datetime) -> None:
        """Make the file anew if ``seen`` is not what it was, or some time has passed. It is
        written only where its content changes. TemporaryError where it cannot be."""
        made_at = self._made_at
        if seen == self._seen and made_at is not None:
            age_s = (now - made_at).total_seconds()
            if 0 <= age_s < REFRESH_S:
                return
        content = json.dumps(self._groups(), indent=1, sort_keys=True) + "\n"
        try:
            self._write(content)
        except OSError as error:
            raise TemporaryError(f"{self._path}: {error.strerror}") from error
        self._seen, self._made_at = seen, now

    def _groups(self) -> list[dict[str, Any]]:
        stable = {service.name: service.stable_pool for service in self._store.services()}
        active = {release.service: release for release in self._store.active_releases()}
        return [
            {
                "targets": [urlsplit(self._base_url(instance.handle)).netloc],
                "labels": instance_labels(
                    instance, active.get(instance.service), stable.get(instance.service)
                )
                | self._page(instance.digest),
            }
            for instance in sorted(self._store.instances(live_only=True), key=lambda i: i.id)
            if instance.state in _SCRAPED and instance.handle is not None
        ]

    def _page(self, digest: str) -> dict[str, str]:
        """What Prometheus must be told of the page; it drops the label after use."""
        path = self._metrics_path(digest)
        return {} if path == _DEFAULT_PAGE else {"__metrics_path__": path}

    def _write(self, content: str) -> None:
        if self._path.exists() and self._path.read_text() == content:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}.{threading.get_ident()}")
        new.write_text(content)
        os.replace(new, self._path)
