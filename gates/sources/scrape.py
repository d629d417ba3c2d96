"""Reads an instance's own metrics page over HTTP."""

import time

import httpx

from canaryctl.common.metrics import References
from canaryctl.gates.samples import Missing, Scrape
from canaryctl.gates.sources.base import Target
from canaryctl.gates.sources.exposition import read_page

MAX_BYTES = 16 * 1024 * 1024
_TEXT = "text/plain"


class _NoPage(Exception):  # noqa: N818  an answer, not an error of ours
    """Why there is no page."""


class ScrapeSource:
    """Thread-safe; connections are kept and used again. ``timeout_s`` bounds a whole read."""

    name = "scrape"

    def __init__(self, timeout_s: float) -> None:
        if not timeout_s > 0:
            raise ValueError(f"found a timeout of {timeout_s:g} s, expected more than 0")
        self._timeout_s = timeout_s
        self._client = httpx.Client(
            timeout=timeout_s, headers={"accept": _TEXT}, trust_env=False, follow_redirects=False
        )

    def read(self, target: Target, refs: References, at: float) -> Scrape:
        """See :class:`~canaryctl.gates.sources.base.SampleSource`."""
        try:
            page = read_page(self._get(target.url), refs)
        except _NoPage as why:
            missing = Missing(f"{target.url}: {why}")
            return Scrape(target.instance, at, dict.fromkeys(refs, missing), self.name)
        return Scrape(target.instance, at, page.values, self.name, page.raw, page.born)

    def close(self) -> None:
        self._client.close()

    def _get(self, url: str) -> str:
        deadline = time.monotonic() + self._timeout_s
        body = bytearray()
        try:
            with self._client.stream("GET", url) as response:
                if response.status_code != httpx.codes.OK:
                    raise _NoPage(f"answered {response.status_code}")
                kind = response.headers.get("content-type", "no content type")
                if not kind.startswith(_TEXT):
                    raise _NoPage(f"answered {kind}, expected a metrics page in {_TEXT}")
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise _NoPage(f"the answer is larger than {MAX_BYTES} bytes")
                    if time.monotonic() > deadline:
                        raise _NoPage(f"no complete answer within {self._timeout_s:g} s")
            return body.decode("utf-8")
        except httpx.TimeoutException as error:
            raise _NoPage(f"no answer within {self._timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _NoPage(f"cannot be read: {str(error) or type(error).__name__}") from error
        except UnicodeDecodeError as error:
            raise _NoPage("the answer is not UTF-8") from error
