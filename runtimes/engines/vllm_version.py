"""Which vLLM releases the adapter knows."""

import re

from canaryctl.common.errors import InputError
from canaryctl.runtimes.engines.vllm_metrics import NEWEST, OLDEST

_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(?:[.+-]?[A-Za-z0-9.+]*)?")

SUPPORTED = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def release(version: str) -> tuple[int, int]:
    """Major and minor of ``0.25.1``, ``0.25.1+cu130``, ``0.25.0rc1``; InputError otherwise."""
    match = _RELEASE.fullmatch(version)
    if match is None:
        raise InputError(f"found vLLM version {version!r}, expected a release such as 0.25.1")
    return int(match.group(1)), int(match.group(2))


def require_supported(version: str) -> tuple[int, int]:
    """Major and minor of a release that the adapter knows; InputError names the range."""
    found = release(version)
    if not OLDEST <= found <= NEWEST:
        raise InputError(
            f"found vLLM {version}, expected {SUPPORTED}: the names of options, metrics and log"
            " lines are known for these"
        )
    return found
