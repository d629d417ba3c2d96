"""Sample sources by name."""

from collections.abc import Callable, Mapping
from typing import Any

from canaryctl.common.errors import UnknownNameError
from canaryctl.gates.sources.base import SampleSource
from canaryctl.gates.sources.prometheus import PrometheusSource
from canaryctl.gates.sources.scrape import ScrapeSource

SOURCES: Mapping[str, Callable[..., SampleSource]] = {
    ScrapeSource.name: ScrapeSource,
    PrometheusSource.name: PrometheusSource,
}
"""name → factory(timeout_s=…, and the source's own options)."""


def build(name: str, *, timeout_s: float, **options: Any) -> SampleSource:
    """The source of that name; UnknownNameError names those there are.

    ``options``: keyword arguments of the source's constructor, such as ``url`` of prometheus.
    """
    try:
        factory = SOURCES[name]
    except KeyError:
        raise UnknownNameError("sample source", name, SOURCES) from None
    return factory(timeout_s=timeout_s, **options)
