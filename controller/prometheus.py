"""How to reach Prometheus: its address, and credentials by reference.

A reference is read at every query, so that a renewed token is used; its value is in no record,
no message and no log.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from canaryctl.common.errors import InputError
from canaryctl.common.urls import url_fault
from canaryctl.controller.artifact.schema import SecretRef
from canaryctl.controller.artifact.secrets import resolve_secrets

URL: Final = "CANARYCTL_PROMETHEUS_URL"
HEADERS: Final = "CANARYCTL_PROMETHEUS_HEADERS"
BASIC: Final = "CANARYCTL_PROMETHEUS_BASIC_AUTH"
BEARER: Final = "CANARYCTL_PROMETHEUS_BEARER_TOKEN"
CA_FILE: Final = "CANARYCTL_PROMETHEUS_CA_FILE"
CERT_FILE: Final = "CANARYCTL_PROMETHEUS_CERT_FILE"
KEY_FILE: Final = "CANARYCTL_PROMETHEUS_KEY_FILE"

VARIABLES: Final[Mapping[str, str]] = {
    URL: "http(s)://HOST:PORT[/PREFIX] of a Prometheus that scrapes the engines; default none",
    HEADERS: "headers to send to it: NAME=env:VARIABLE or NAME=file:/PATH, separated by commas",
    BASIC: "env:VARIABLE or file:/PATH that holds USER:PASSWORD",
    BEARER: "env:VARIABLE or file:/PATH that holds a token",
    CA_FILE: "PEM file of the authorities that its certificate is checked against",
    CERT_FILE: "PEM file of the certificate to show to it",
    KEY_FILE: "PEM file of that certificate's key",
}

_REFERENCE = re.compile(r"env:(?P<from_env>[A-Za-z_][A-Za-z0-9_]*)|file:(?P<from_file>/.+)")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SENDABLE = re.compile(r"[\x20-\x7e]+")


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """``headers``: name → reference. ``basic_auth`` or ``bearer_token``, or neither."""

    url: str
    headers: Mapping[str, SecretRef] = field(default_factory=dict)
    basic_auth: SecretRef | None = None
    bearer_token: SecretRef | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


def read_settings(given: Mapping[str, str]) -> tuple[PrometheusSettings | None, list[str]]:
    """The settings that ``given`` (name → value, set ones only) make, and what is wrong with
    them, one line for each mistake; None where no URL is given."""
    problems: list[str] = []

    def reference(name: str, text: str) -> SecretRef | None:
        found = _REFERENCE.fullmatch(text)
        if found is None:
            problems.append(
                f"{name}: found another form (not shown, it may be a secret), expected "
                "env:VARIABLE or file:/ABSOLUTE/PATH"
            )
            return None
        return SecretRef.model_validate(found.groupdict())

    def file(name: str) -> Path | None:
        if name not in given:
            return None
        path = Path(given[name])
        if not (path.is_absolute() and path.is_file()):
            problems.append(f"{name}: found {given[name]!r}, expected the absolute path of a file")
        return path

    headers: dict[str, SecretRef] = {}
    for item in given[HEADERS].split(",") if HEADERS in given else ():
        name, equals, text = item.strip().partition("=")
        if not equals or not _HEADER.fullmatch(name):
            problems.append(
                f"{HEADERS}: expected {VARIABLES[HEADERS]} (what was found is not shown)"
            )
        elif (ref := reference(HEADERS, text)) is not None:
            headers[name] = ref
    basic = reference(BASIC, given[BASIC]) if BASIC in given else None
    bearer = reference(BEARER, given[BEARER]) if BEARER in given else None
    if BASIC in given and BEARER in given:
        problems.append(f"{BEARER}: found beside {BASIC}, expected one of the two")
    ca_file, cert_file, key_file = file(CA_FILE), file(CERT_FILE), file(KEY_FILE)
    if key_file is not None and cert_file is None:
        problems.append(f"{KEY_FILE}: found without {CERT_FILE}; set it too")
    url = given.get(URL)
    if url is None:
        lonely = sorted(given.keys() & (VARIABLES.keys() - {URL}))
        problems += [f"{name}: found without {URL}; set it, or unset {name}" for name in lonely]
        return None, problems
    fault = url_fault(url)
    if fault is not None:
        problems.append(f"{URL}: {fault}")
    settings = PrometheusSettings(
        url.rstrip("/"), headers, basic, bearer, ca_file, cert_file, key_file
    )
    return settings, problems


def request_headers(
    settings: PrometheusSettings, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What to send along with a query, read now. InputError names a reference that cannot be
    read or whose value no header can carry, without the value."""
    refs = {f"{HEADERS} {name}": ref for name, ref in settings.headers.items()}
    if settings.basic_auth is not None:
        refs[BASIC] = settings.basic_auth
    if settings.bearer_token is not None:
        refs[BEARER] = settings.bearer_token
    values = {name: value.strip() for name, value in resolve_secrets(refs, environ).items()}
    for name, value in values.items():
        if not _SENDABLE.fullmatch(value):
            raise InputError(f"secret {name} holds characters that no header can carry")
    headers = {name: values[f"{HEADERS} {name}"] for name in settings.headers}
    if settings.basic_auth is not None:
        if ":" not in values[BASIC]:
            raise InputError(f"secret {BASIC}: found no colon, expected USER:PASSWORD")
        encoded = base64.b64encode(values[BASIC].encode()).decode()
        headers["Authorization"] = f"Basic {encoded}"
    if settings.bearer_token is not None:
        headers["Authorization"] = f"Bearer {values[BEARER]}"
    return headers
