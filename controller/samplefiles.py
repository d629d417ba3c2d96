"""Files of samples and of A/A histories: read whole, or refused with what is wrong with them."""

import json
from pathlib import Path

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import Signal
from canaryctl.gates.history import AaHistory, HistoryError, from_document
from canaryctl.gates.offline import learn_history
from canaryctl.gates.samplefile import Sample, read_samples

DOCUMENT = ".json"


def load_samples(path: Path) -> list[Sample]:
    """JSON lines (:mod:`canaryctl.gates.samplefile`)."""
    return read_samples(str(path), _text(path).splitlines())


def load_history(path: Path, signal: Signal | None = None) -> AaHistory:
    """The summary of `canaryctl gates history` where the name ends in ``.json``, else the samples
    of `canaryctl gates record`. ``signal``: of lines that name none."""
    if path.suffix != DOCUMENT:
        return learn_history(load_samples(path), signal)
    try:
        return from_document(json.loads(_text(path)))
    except HistoryError as error:
        raise InputError(f"{path}: {error}") from None
    except ValueError as error:
        raise InputError(f"{path}: found no JSON ({error}), expected an A/A history") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
