"""Where a release's gates read their samples: the artifact says, else the settings."""

import logging
from functools import partial
from threading import Lock
from typing import Final

from canaryctl.common.metrics import References
from canaryctl.controller.model import Release
from canaryctl.controller.prometheus import URL, PrometheusSettings, request_headers
from canaryctl.gates.samples import Missing, Scrape
from canaryctl.gates.sources import registry
from canaryctl.gates.sources.base import SampleSource, Target

SCRAPE_TIMEOUT_S: Final = 1.0
"""A metrics page that takes longer is missing in this look, and the look says so."""

PROMETHEUS_TIMEOUT_S: Final = 1.0
"""A tick waits for a look: longer than this and an engine's death would be seen too late."""

NO_SERVER: Final = (
    f"rollout.metrics.source is prometheus, but no server is known; set {URL} for the "
    "controller, or rollout.metrics.url"
)


class _NoServer:
    """Stands for a Prometheus that nobody named: every signal is missing, hard gates go on."""

    name = "prometheus"

    def read(self, target: Target, refs: References, at: float) -> Scrape:
        return Scrape(target.instance, at, dict.fromkeys(refs, Missing(NO_SERVER)), self.name)


class Sources:
    """Sources by the release that they judge. ``scrape``: read engines directly, always."""

    def __init__(self, settings: PrometheusSettings | None) -> None:
        self._settings = settings
        self.scrape = registry.build("scrape", timeout_s=SCRAPE_TIMEOUT_S)
        self._servers: dict[str, SampleSource] = {}
        self._lock = Lock()

    def of(self, release: Release) -> SampleSource:
        """The source of a release's gates."""
        chosen = release.document.rollout.metrics
        if chosen is None:
            return self.scrape if self._settings is None else self._server(self._settings.url)
        if chosen.source == "scrape":
            return self.scrape
        url = chosen.url or (self._settings.url if self._settings is not None else None)
        return self._server(url) if url is not None else _NoServer()

    def fault(self, release: Release) -> str | None:
        """Why the release could never be judged, known before anything is started."""
        return NO_SERVER if isinstance(self.of(release), _NoServer) else None

    def _server(self, url: str) -> SampleSource:
        url = url.rstrip("/")
        with self._lock:
            if url not in self._servers:
                self._servers[url] = self._build(url)
            return self._servers[url]

    def _build(self, url: str) -> SampleSource:
        # It tells of every retry, with the whole query. That a server is away is told once, as
        # what the release holds for.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
        build = partial(registry.build, "prometheus", timeout_s=PROMETHEUS_TIMEOUT_S, url=url)
        settings = self._settings
        if settings is None:
            return build()
        if url != settings.url:
            # An artifact may name any address: the controller's credentials do not go there.
            return build(ca_file=settings.ca_file)
        return build(
            headers=partial(request_headers, settings),
            ca_file=settings.ca_file,
            cert_file=settings.cert_file,
            key_file=settings.key_file,
        )
