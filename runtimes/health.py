"""What an engine's health page says. It says nothing about progress: a hung engine is healthy."""

from enum import StrEnum

import httpx


class Health(StrEnum):
    GOOD = "good"
    DEAD = "dead"  # 503: the server lives on and its engine does not
    REFUSED = (
        "refused"  # nobody listens: not yet, or no more while the process takes its time to end
    )
    SILENT = "silent"  # no answer in time, or another one: proves nothing


def read_health(http: httpx.Client, url: str) -> Health:
    """Ask once, within the client's time-out."""
    try:
        status = http.get(url).status_code
    except httpx.HTTPError as error:
        return Health.REFUSED if _was_refused(error) else Health.SILENT
    if status == httpx.codes.SERVICE_UNAVAILABLE:
        return Health.DEAD
    return Health.GOOD if status == httpx.codes.OK else Health.SILENT


def _was_refused(error: BaseException | None) -> bool:
    """The system itself said that no one listens; a time-out is no such thing."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        error = error.__cause__ or error.__context__
    return False
