"""Reads an instance's latest scrape back from a Prometheus server, exactly as it was scraped.

Two instant queries a read. The first finds the last scrape: ``timestamp(up{…})``. The second
takes the raw samples of that very scrape: the matrix ``{__name__=~"…",…}[1ms]`` at its time. All
samples of a scrape carry one timestamp and become visible together, so what comes back is the
page as it was, and :attr:`~canaryctl.gates.samples.Scrape.at` is the scrape's own time. A series
that was not on that page is not there, whatever older samples of it are still in the database;
``rate()`` and ``increase()``, which guess, are never asked for.

A target is found by the labels service, artifact, release, role and instance on its ``up``.
"""

import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from canaryctl.common.errors import CanaryctlError
from canaryctl.common.metrics import References
from canaryctl.gates.samples import AMBIGUOUS, Missing, Scrape
from canaryctl.gates.sources.base import Target
from canaryctl.gates.sources.exposition import names, read_page

STALE_AFTER_S: Final = 150.0
"""Two and a half scrapes at Prometheus's default interval. A sample is never used twice, so an
old one does no harm; after this long nobody can say that the target is being scraped."""

MAX_BYTES: Final = 16 * 1024 * 1024
RETRIES: Final = 1  # of a connection that failed or a gateway that said 502-504; never of a wait
CONNECTIONS: Final = 32
_UP: Final = "up"
_NAME: Final = "__name__"
_RENAMED: Final = "exported_"  # what scraping puts before a label of the page that it needs

Headers = Callable[[], Mapping[str, str]]
Labels = dict[str, str]
T = TypeVar("T")


class _NoSample(Exception):  # noqa: N818  an answer, not an error of ours
    """Why there is no scrape to read."""


def _no_headers() -> Mapping[str, str]:
    return {}


class PrometheusSource:
    """Thread-safe; connections are kept and used again.

    ``url``: of the server, with its path prefix. ``timeout_s``: of each of the two queries.
    ``headers``: asked for at every query, so that a token may be renewed; what it returns is
    never shown. ``ca_file``, ``cert_file`` and ``key_file``: PEM files, for https.
    """

    name = "prometheus"

    def __init__(
        self,
        timeout_s: float,
        *,
        url: str,
        headers: Headers = _no_headers,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        stale_after_s: float = STALE_AFTER_S,
    ) -> None:
        for what, seconds in (("timeout", timeout_s), ("stale_after", stale_after_s)):
            if not seconds > 0:
                raise ValueError(f"found a {what} of {seconds:g} s, expected more than 0")
        # Here, not above: these take a fifth of a second, and most commands read no samples.
        import requests  # noqa: PLC0415
        from prometheus_api_client.prometheus_connect import PrometheusConnect  # noqa: PLC0415
        from requests.adapters import HTTPAdapter  # noqa: PLC0415
        from urllib3.util.retry import Retry  # noqa: PLC0415

        self._url, self._timeout_s, self._stale_after_s = url.rstrip("/"), timeout_s, stale_after_s
        self._headers = headers
        self._session = requests.Session()
        self._session.trust_env = False  # no proxies and no ~/.netrc that nobody named here
        self._session.max_redirects = 0  # credentials go where they were meant to go
        self._session.verify = str(ca_file) if ca_file is not None else True
        if cert_file is not None:
            self._session.cert = (
                str(cert_file) if key_file is None else (str(cert_file), str(key_file))
            )
        self._session.auth = self._authorise
        self._session.hooks["response"].append(self._take_body)
        retry = Retry(
            total=RETRIES,
            read=False,
            backoff_factor=0,
            status_forcelist=(502, 503, 504),
            raise_on_status=False,
            respect_retry_after_header=False,
        )
        self._client = PrometheusConnect(
            self._url,
            session=self._session,
            timeout=timeout_s,  # type: ignore[arg-type] # handed to requests as it is
            retry=retry,
        )
        self._session.mount(self._url, HTTPAdapter(pool_maxsize=CONNECTIONS, max_retries=retry))

    def read(self, target: Target, refs: References, at: float) -> Scrape:
        """See :class:`~canaryctl.gates.sources.base.SampleSource`. ``at`` of what is returned is
        the time of the scrape that was read; of one that could not be read, the time asked for."""
        try:
            scraped_at, scraping = self._last_scrape(target, at)
            text = self._page(target, refs, scraped_at, scraping)
        except _NoSample as why:
            return Scrape(target.instance, at, dict.fromkeys(refs, Missing(str(why))), self.name)
        page = read_page(text, refs, lambda: self._exported(target, scraped_at))
        raw = f"# {_UP}{_braces(scraping)} 1 {_milliseconds(scraped_at)}\n{page.raw}"
        return Scrape(target.instance, scraped_at, page.values, self.name, raw, page.born)

    def close(self) -> None:
        self._client.close()

    def _last_scrape(self, target: Target, at: float) -> tuple[float, Labels]:
        """When the target was last scraped, and the labels that scraping gave to its series."""
        matchers = _braces(target.labels)
        found = self._ask(f"timestamp({_UP}{matchers})", at, _instant)
        if not found:
            raise _NoSample(
                f"{self._url} has no target with {matchers}: it is not scraped yet, or under "
                "other labels"
            )
        fresh = [(when, labels) for when, labels in found if at - when <= self._stale_after_s]
        if not fresh:
            age_s = at - max(when for when, _ in found)
            raise _NoSample(
                f"stale: the last scrape of {target.instance} that {self._url} has is "
                f"{age_s:.0f} s old, expected at most {self._stale_after_s:g} s; is it still "
                "scraped, and do the clocks agree?"
            )
        if len(fresh) > 1:
            raise _NoSample(_several(self._url, target.instance, [labels for _, labels in fresh]))
        return fresh[0]

    def _page(
        self,
        target: Target,
        refs: References,
        scraped_at: float,
        scraping: Labels,
    ) -> str:
        """The samples of one scrape as lines, without the labels that scraping gave them."""
        wanted = "|".join(sorted({_UP} | names(refs)))
        selector = _braces({**target.labels, _NAME: wanted}, pattern=_NAME)
        found = [
            (labels, value)
            for labels, samples in self._ask(f"{selector}[1ms]", scraped_at, _raw)
            for when, value in samples
            if _milliseconds(when) == _milliseconds(scraped_at)
        ]
        up = [value for labels, value in found if labels[_NAME] == _UP]
        if up != ["1"]:
            raise _NoSample(
                f"the last scrape of {target.instance} by {self._url} failed "
                f"(up is {', '.join(up) or 'absent'})"
            )
        return "".join(
            _line(labels, scraping, value, scraped_at)
            for labels, value in found
            if labels[_NAME] != _UP
        )

    def _exported(self, target: Target, scraped_at: float) -> list[str]:
        """Names of all series of the target; none where they cannot be asked for."""
        query = f"count by ({_NAME}) ({_braces(target.labels)})"
        try:
            return self._ask(query, scraped_at, lambda series: str(series["metric"][_NAME]))
        except _NoSample:
            return []

    def _ask(self, query: str, at: float, take: Callable[[Any], T]) -> list[T]:
        """What ``take`` makes of each series in the answer to an instant query."""
        import requests  # noqa: PLC0415
        from prometheus_api_client.exceptions import PrometheusApiClientException  # noqa: PLC0415

        try:
            found = self._client.custom_query(query, params={"time": f"{at:.3f}"})
            return [take(series) for series in found]
        except requests.Timeout:
            why = f"no answer within {self._timeout_s:g} s"
        except requests.TooManyRedirects:
            why = "it redirects to another address; name that one instead"
        except (requests.JSONDecodeError, LookupError, TypeError, AttributeError):
            why = "it answered no query result; is it Prometheus?"
        except requests.RequestException as error:
            why = f"cannot be reached: {_cause(error)}"
        except ValueError:
            why = "it answered a value that is no number; is it Prometheus?"
        except PrometheusApiClientException as error:
            why = f"it refused the query: {str(error)[:200]}"
        except CanaryctlError as error:  # a credential that cannot be read
            why = f"it was not asked: {error}"
        raise _NoSample(f"{self._url}: {why}")

    def _authorise(self, request: Any) -> Any:
        request.headers.update(self._headers())
        return request

    def _take_body(self, response: Any, **_: object) -> None:
        """Read the answer here, where its size and the whole time that it takes are bounded."""
        import requests  # noqa: PLC0415
        from urllib3.exceptions import HTTPError, TimeoutError  # noqa: A004, PLC0415

        until = time.monotonic() + self._timeout_s - response.elapsed.total_seconds()
        body = bytearray()
        try:
            while chunk := response.raw.read1(65536, decode_content=True):
                body += chunk
                if len(body) > MAX_BYTES:
                    raise requests.ConnectionError(f"its answer is larger than {MAX_BYTES} bytes")
                if time.monotonic() > until:
                    raise requests.Timeout
        except TimeoutError as error:
            raise requests.Timeout from error
        except HTTPError as error:
            raise requests.ConnectionError("its answer broke off") from error
        finally:
            response.raw.close()  # a connection that was read to its end is back in the pool
        response.raw = io.BytesIO(bytes(body))


def _instant(series: Any) -> tuple[float, Labels]:
    """(the value, labels) of one series of an instant vector."""
    return float(series["value"][1]), dict(series["metric"])


def _raw(series: Any) -> tuple[Labels, list[tuple[float, str]]]:
    """(labels, its samples as time and value) of one series of a matrix. One with native
    histograms alone has no values."""
    return dict(series["metric"]), [(float(t), str(v)) for t, v in series.get("values", ())]


def _milliseconds(at: float) -> int:
    return round(at * 1000)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _braces(labels: Mapping[str, str], pattern: str = "") -> str:
    """``{a="b",…}``; the value of the label ``pattern`` is a regular expression."""
    return (
        "{"
        + ",".join(
            f"{label}{'=~' if label == pattern else '='}{_quoted(value)}"
            for label, value in sorted(labels.items())
        )
        + "}"
    )


def _line(labels: Labels, scraping: Labels, value: str, at: float) -> str:
    """A sample as the page had it: labels that scraping added are taken off, and those of the
    page's own that it renamed for them get their names back."""
    own = {}
    for label, content in labels.items():
        if label == _NAME or scraping.get(label) == content:
            continue
        was = label.removeprefix(_RENAMED)
        own[was if was in scraping else label] = content
    return f"{labels[_NAME]}{_braces(own) if own else ''} {value} {_milliseconds(at)}\n"


def _several(url: str, instance: str, found: list[Labels]) -> str:
    """Which targets answer to the same name, by the labels that tell them apart."""
    every = {label for labels in found for label in labels}
    differing = sorted(name for name in every if len({labels.get(name) for labels in found}) > 1)
    shown = sorted(_braces({name: labels.get(name, "") for name in differing}) for labels in found)
    return (
        f"{AMBIGUOUS}: {url} scrapes {instance} as {len(found)} targets where one is expected: "
        f"{', '.join(shown[:4])}" + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
    )


def _cause(error: Exception) -> str:
    """The innermost reason, without the query and without a header."""
    if isinstance(error, ValueError):  # an address or a header that cannot be sent
        return type(error).__name__
    inner = error.args[0] if error.args else error
    return str(getattr(inner, "reason", inner)).rpartition(": ")[2] or type(error).__name__
