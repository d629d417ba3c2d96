"""Traffic from files: request traces as they are published, and counts by size.

Traces, recognised by their first line: CSV with ``TIMESTAMP,ContextTokens,GeneratedTokens``
(Azure's LLM inference traces), JSON lines with ``timestamp`` (milliseconds), ``input_length`` and
``output_length`` (Mooncake's), and either form with ``arrival`` (seconds), ``input_tokens`` and
``output_tokens``. Counts: CSV with ``size,count``, or with ``kind,size,count``.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from canaryctl.common.errors import InputError, UnknownNameError
from canaryctl.runtimes.grid.distribution import Distribution, Kind, Traffic

_AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE: Final = ("timestamp", "input_length", "output_length")
_PLAIN: Final = ("arrival", "input_tokens", "output_tokens")
_FORMS: Final = (_AZURE, _MOONCAKE, _PLAIN)


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """``arrival_s``: seconds since the first request. ``line``: where it stands in its file."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    line: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival. ``begins``: the time of day of the first in seconds (UTC);
    None where the trace does not tell."""

    path: Path
    requests: tuple[TracedRequest, ...]
    begins: float | None


def read_trace(path: Path) -> Trace:
    """InputError names the file, the line and what was expected there."""
    rows = [(line, row) for line, row in _rows(path)]
    if not rows:
        raise InputError(f"{path}: found no request, expected one a line")
    form = next((form for form in _FORMS if set(form) <= rows[0][1].keys()), None)
    if form is None:
        forms = "; ".join(", ".join(form) for form in _FORMS)
        raise InputError(
            f"{path}:{rows[0][0]}: found the fields {', '.join(rows[0][1])}; expected one of: "
            f"{forms}"
        )
    arrival, prompt, output = form
    read_time = _TIMES[form]
    found = []
    for line, row in rows:
        where = f"{path}:{line}"
        generated = _whole(row.get(output), output, where, least=0)
        if not generated:
            continue  # failed or cancelled: it made no token
        found.append(
            (
                read_time(row.get(arrival), arrival, where),
                _whole(row.get(prompt), prompt, where, least=1),
                generated,
                line,
            )
        )
    if not found:
        raise InputError(f"{path}: no request generated a token")
    found.sort(key=lambda request: request[0])
    first = found[0][0]
    return Trace(
        path,
        tuple(
            TracedRequest(at - first, prompt, output, line) for at, prompt, output, line in found
        ),
        first % 86400 if form is _AZURE else None,
    )


def read_counts(path: Path) -> Traffic:
    """``size,count`` are taken for scheduled tokens; with ``kind`` all four may be told apart."""
    counts: dict[Kind, Counter[int]] = {}
    for line, row in _csv(path):
        where = f"{path}:{line}"
        if not {"size", "count"} <= row.keys():
            raise InputError(f"{where}: found {', '.join(row)}, expected size,count or kind,…")
        name = row.get("kind", Kind.SCHEDULED_TOKENS.value)
        if name not in set(Kind):
            raise InputError(f"{where}: {UnknownNameError('kind', str(name), set(Kind))}")
        size = _whole(row["size"], "size", where, least=1)
        counts.setdefault(Kind(name), Counter())[size] += _whole(
            row["count"], "count", where, least=0
        )
    if not counts:
        raise InputError(f"{path}: found no counts, expected a line size,count for each size")
    return Traffic(str(path), {kind: Distribution.of(sizes) for kind, sizes in counts.items()})


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if path.suffix.lower() in (".jsonl", ".ndjson", ".json"):
        yield from _json_lines(path)
    else:
        yield from _csv(path)


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, text in enumerate(_lines(path), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            raise InputError(f"{path}:{line}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}:{line}: found {text.strip()[:40]!r}, expected an object")
        yield line, row


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(_lines(path), skipinitialspace=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise InputError(
                    f"{path}:{reader.line_num}: expected {len(reader.fieldnames or ())} values"
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: not CSV: {error}") from error


def _lines(path: Path) -> Sequence[str]:
    try:
        return path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _whole(value: Any, name: str, where: str, *, least: int) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise InputError(f"{where}: {name} is {value!r}, expected a whole number from {least}")
    return number


def _number(value: Any, name: str, where: str) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    if isinstance(value, bool) or not 0 <= number < 1e15:
        raise InputError(f"{where}: {name} is {value!r}, expected a number from 0")
    return number


def _date(value: Any, name: str, where: str) -> float:
    try:
        at = datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise InputError(
            f"{where}: {name} is {value!r}, expected a time such as 2023-11-16 18:17:03.98"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _milliseconds(value: Any, name: str, where: str) -> float:
    return _number(value, name, where) / 1000


_TIMES: Final[Mapping[tuple[str, ...], Callable[[Any, str, str], float]]] = {
    _AZURE: _date,
    _MOONCAKE: _milliseconds,
    _PLAIN: _number,
}
