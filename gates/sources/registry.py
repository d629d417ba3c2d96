"""Sample sources by name."""

from collections.abc import Callable, Mapping

from canaryctl.common.errors import UnknownNameError
from canaryctl.gates.sources.base import SampleSource
from canaryctl.gates.sources.scrape import ScrapeSource

SOURCES: Mapping[str, Callable[[float], SampleSource]] = {ScrapeSource.name: ScrapeSource}
"""name → factory(timeout_s)."""


def build(name: str, *, timeout_s: float) -> SampleSource:
    """The source of that name; UnknownNameError names those there are."""
    try:
        factory = SOURCES[name]
    except KeyError:
        raise UnknownNameError("sample source", name, SOURCES) from None
    return factory(timeout_s)
