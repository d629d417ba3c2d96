"""How to reach Prometheus: settings, references, and nothing of them shown."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from canaryctl.common.errors import InputError
from canaryctl.common.urls import url_fault
from canaryctl.controller.artifact.schema import Metrics, Rollout
from canaryctl.controller.prometheus import request_headers
from canaryctl.controller.settings import Settings

URL = "http://prometheus:9090/team"


def settings(**given: str) -> Settings:
    prefixed = {f"CANARYCTL_PROMETHEUS_{name}": value for name, value in given.items()}
    return Settings.from_environment({"HOME": "/home/a", **prefixed})


def problems(**given: str) -> list[str]:
    with pytest.raises(InputError) as found:
        settings(**given)
    return str(found.value).splitlines()


def test_without_a_url_there_is_none() -> None:
    assert settings().prometheus is None


def test_everything_can_be_given(tmp_path: Path) -> None:
    pem = tmp_path / "a.pem"
    pem.write_text("pem")
    secret = tmp_path / "token"
    secret.write_text("from a file\n")
    found = settings(
        URL=URL + "/",
        HEADERS=f"X-Scope-OrgID=env:TENANT, X-Other=file:{secret}",
        BEARER_TOKEN="env:TOKEN",
        CA_FILE=str(pem),
        CERT_FILE=str(pem),
        KEY_FILE=str(pem),
    ).prometheus
    assert found is not None
    assert found.url == URL
    assert (found.ca_file, found.cert_file, found.key_file) == (pem, pem, pem)
    assert request_headers(found, {"TENANT": "a", "TOKEN": "hush"}) == {
        "X-Scope-OrgID": "a",
        "X-Other": "from a file",
        "Authorization": "Bearer hush",
    }
    assert "hush" not in repr(found)


def test_a_reference_is_read_when_it_is_used(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    found = settings(URL=URL, BASIC_AUTH=f"file:{secret}").prometheus
    assert found is not None
    with pytest.raises(InputError, match=str(secret)):
        request_headers(found)
    secret.write_text("me:open sesame\n")
    assert request_headers(found) == {"Authorization": "Basic bWU6b3BlbiBzZXNhbWU="}
    secret.write_text("no colon")
    with pytest.raises(InputError, match="USER:PASSWORD") as fault:
        request_headers(found)
    assert "no colon" not in str(fault.value).replace("found no colon", "")


@pytest.mark.parametrize("value", ["two\nlines", "nul\x01", "pass\u00e9"])
def test_a_value_that_no_header_can_carry_is_not_shown(value: str) -> None:
    found = settings(URL=URL, BEARER_TOKEN="env:TOKEN").prometheus
    assert found is not None
    with pytest.raises(InputError, match="no header can carry") as fault:
        request_headers(found, {"TOKEN": value})
    assert value not in str(fault.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"URL": "prometheus:9090"}, "expected http://HOST:PORT"),
        ({"URL": "http://"}, "expected http://HOST:PORT"),
        ({"URL": "http://a:b"}, "expected http://HOST:PORT"),
        ({"URL": "http://a/?x=1"}, "expected http://HOST:PORT"),
        ({"URL": "http://me:hush@a"}, "by reference"),
        ({"URL": URL, "BEARER_TOKEN": "hush"}, "expected env:VARIABLE"),
        ({"URL": URL, "BEARER_TOKEN": "file:hush"}, "expected env:VARIABLE"),
        ({"URL": URL, "BASIC_AUTH": "me:hush"}, "expected env:VARIABLE"),
        ({"URL": URL, "HEADERS": "X-A: hush"}, "NAME=env:VARIABLE"),
        ({"URL": URL, "HEADERS": "X-A=hush"}, "expected env:VARIABLE"),
        ({"URL": URL, "HEADERS": "X-A=env:A,"}, "NAME=env:VARIABLE"),
        ({"URL": URL, "BEARER_TOKEN": "env:A", "BASIC_AUTH": "env:B"}, "one of the two"),
        ({"URL": URL, "CA_FILE": "/nowhere.pem"}, "absolute path of a file"),
        ({"URL": URL, "KEY_FILE": __file__}, "without CANARYCTL_PROMETHEUS_CERT_FILE"),
        ({"BEARER_TOKEN": "env:A"}, "without CANARYCTL_PROMETHEUS_URL"),
    ],
)
def test_a_mistake_is_named_and_no_secret_shown(given: dict[str, str], expected: str) -> None:
    (problem,) = problems(**given)
    assert expected in problem
    assert "hush" not in problem


def test_all_mistakes_are_named_at_once() -> None:
    assert len(problems(URL="nonsense", HEADERS="x", BASIC_AUTH="x", CA_FILE="x")) == 4


def test_the_artifact_may_choose() -> None:
    assert Rollout().metrics is None
    chosen = Rollout.model_validate({"metrics": {"source": "prometheus", "url": URL}})
    assert chosen.metrics == Metrics(source="prometheus", url=URL)


@pytest.mark.parametrize(
    "metrics",
    [
        {"source": "telepathy"},
        {"url": URL},
        {"source": "scrape", "url": URL},
        {"source": "prometheus", "url": "http://me:hush@a"},
        {"source": "prometheus", "token": "hush"},
    ],
)
def test_a_choice_that_cannot_be_is_refused(metrics: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Rollout.model_validate({"metrics": metrics})


def test_an_address_may_be_ipv6() -> None:
    assert url_fault("http://[::1]:9090") is None
    assert url_fault("http://[::1:9090") is not None
