"""The records alone, for commands that show what is there: the rest of the application, which
starts and asks engines, takes half as long again to import."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from canaryctl.controller.model import Release
    from canaryctl.controller.settings import Settings
    from canaryctl.controller.store import Store


class Records(NamedTuple):
    settings: "Settings"
    store: "Store"


@contextmanager
def records() -> Iterator[Records]:
    """The store as the environment configures it, closed afterwards."""
    from canaryctl.controller.settings import Settings
    from canaryctl.controller.store import open_store

    settings = Settings.from_environment()
    with open_store(settings) as store:
        yield Records(settings, store)


def document(store: "Store", shown: "Release") -> dict[str, Any]:
    """A release with its gates and its log, in JSON types."""
    from canaryctl.controller.report import release_document

    return release_document(shown, store.gate_records(shown.id), store.events(shown.id))
