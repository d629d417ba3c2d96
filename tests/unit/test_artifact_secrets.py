"""Secrets: by reference, read late, shown nowhere."""

import os
import traceback
from pathlib import Path

import pytest

from canaryctl.common.errors import InputError
from canaryctl.controller.artifact.schema import SecretRef
from canaryctl.controller.artifact.secrets import (
    HIDDEN,
    is_literal_secret,
    names_a_secret,
    resolve_secrets,
    shown,
)

VALUE = "not-to-be-seen"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "api-key",
        "OPENAI_API_KEY",
        "dbPassword",
        "DB_PASSWORD_FILE",
        "AWS_SECRET_ACCESS_KEY",
        "hftoken",
        "APIKEY",
        "auth.token",
        "CREDENTIALS",
    ],
)
def test_names_that_mean_a_secret(name: str) -> None:
    assert names_a_secret(name)
    assert is_literal_secret(name, VALUE)
    assert shown(name, VALUE) == HIDDEN


@pytest.mark.parametrize(
    "name",
    [
        "max-num-batched-tokens",
        "TOKENIZERS_PARALLELISM",
        "tokenizer-mode",
        "MONKEY",
        "seed",
        "NCCL",
    ],
)
def test_names_that_do_not(name: str) -> None:
    assert not is_literal_secret(name, "auto")
    assert shown(name, "auto") == "auto"


def test_a_number_is_a_limit_but_may_be_a_password() -> None:
    assert not is_literal_secret("long-prefill-token-threshold", "2048")
    assert not is_literal_secret("skip-token", "true")
    assert not is_literal_secret("api-key", 5)
    assert is_literal_secret("DB_PASSWORD", "1234")
    assert not is_literal_secret("HF_TOKEN", "")


@pytest.mark.parametrize(
    "value",
    [
        "hf_" + "a" * 34,
        "sk-" + "a" * 40,
        "ghp_" + "a" * 36,
        "AKIA" + "A" * 16,
        "-----BEGIN RSA PRIVATE KEY-----",
        "http://user:pw@proxy:3128",
    ],
)
def test_values_that_are_secrets_by_their_form(value: str) -> None:
    assert is_literal_secret("harmless", value)


def test_values_come_from_the_environment_and_from_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{VALUE}\n")
    refs = {"A": SecretRef(from_env="SOURCE"), "B": SecretRef(from_file=str(file))}
    assert resolve_secrets(refs, {"SOURCE": " kept as it is "}) == {
        "A": " kept as it is ",
        "B": VALUE,
    }


def test_the_process_s_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SOURCE", VALUE)
    assert resolve_secrets({"A": SecretRef(from_env="A_SOURCE")}) == {"A": VALUE}
    assert resolve_secrets({}) == {}


def test_every_bad_reference_is_named_and_no_value(tmp_path: Path) -> None:
    binary, nul, empty, pipe = (tmp_path / n for n in ("binary", "nul", "empty", "pipe"))
    binary.write_bytes(VALUE.encode() + b"\xff")
    nul.write_bytes(VALUE.encode() + b"\0")
    empty.write_text("\n")
    os.mkfifo(pipe)
    refs = {
        "A": SecretRef(from_env="NOT_SET"),
        "B": SecretRef(from_env="EMPTY"),
        "C": SecretRef(from_file=str(tmp_path / "missing")),
        **{f.name: SecretRef(from_file=str(f)) for f in (binary, nul, empty, pipe)},
    }
    with pytest.raises(InputError) as raised:
        resolve_secrets(refs, {"EMPTY": ""})
    message = str(raised.value)
    assert len(message.splitlines()) == 7
    for expected in (
        "secret A: environment variable NOT_SET is not set",
        "secret B: environment variable EMPTY is empty",
        f"secret C: file {tmp_path}/missing: no such file",
        f"secret binary: file {binary}: found bytes that are not UTF-8",
        "holds a NUL character",
        f"secret empty: file {empty} is empty",
        "found a pipe",
    ):
        assert expected in message
    everything = "".join(traceback.format_exception(raised.value))
    assert VALUE not in everything
    assert raised.value.__context__ is None
