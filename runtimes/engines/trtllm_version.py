"""Which TensorRT-LLM releases the adapter knows, and what changed between them."""

import re

from canaryctl.common.errors import InputError

OLDEST = (1, 1)
NEWEST = (1, 3)
SUPPORTED = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"

# The option for the YAML file was --extra_llm_api_options alone, and stays as its other name.
CONFIG_OPTION_SINCE = (1, 2)
SERVED_NAME = "served_model_name"
SERVED_NAME_SINCE = (1, 3)

_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(?:[.+-]?[A-Za-z0-9.+]*)?")


def release(version: str) -> tuple[int, int]:
    """Major and minor of ``1.2.0``, ``1.3.0rc5``; InputError otherwise."""
    match = _RELEASE.fullmatch(version)
    if match is None:
        raise InputError(f"found TensorRT-LLM version {version!r}, expected one such as 1.2.0")
    return int(match.group(1)), int(match.group(2))


def require_supported(version: str) -> tuple[int, int]:
    """Major and minor of a release that the adapter knows; InputError names the range."""
    found = release(version)
    if not OLDEST <= found <= NEWEST:
        raise InputError(
            f"found TensorRT-LLM {version}, expected {SUPPORTED}: the names of options, metrics"
            " and log lines are known for these"
        )
    return found
