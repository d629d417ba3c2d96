"""What vLLM's core made of what it was asked, by its own log lines.

Its API server, which the probe lives in, has the configuration that the core was started with, and
hears nothing of what the core then decides: the attention backend, and a graph mode that this
backend can do. Read in 0.20 to 0.33; names are those that an engine attests itself by.
"""

import re

from canaryctl.runtimes.engines.base import NO_SIZES
from canaryctl.runtimes.engines.log_reader import LINE_LIMIT
from canaryctl.runtimes.spec import GraphMode

_PREFIX = re.compile(r"^[^\[]*\[[^\]]*\] ")  # process, level, time, and the place in the source
_A_MODE = "(" + "|".join(sorted((mode.value for mode in GraphMode), key=len, reverse=True)) + r")\b"

_MODE = re.compile(
    r"(?:setting cudagraph_mode=|(?:Setting|Overriding) cudagraph_mode (?:from \S+ )?to "
    r"|Cudagraph mode .* Overriding to )(?:CUDAGraphMode\.)?" + _A_MODE
)
_SKIPPED = re.compile(r"Skipping (?:encoder and decoder )?CUDA graph capture")
# What the probe adds to the core's own line.
_CAPTURED = re.compile(r"Graph capturing finished in .*, as " + _A_MODE + r" of ([\d,]+|none)$")
_SIZES = re.compile(r"cudagraph_capture_sizes specified in .* is overridden by config \[")
_BACKEND = re.compile(
    r"[\[/](?:cuda|rocm|cpu)\.py:\d+\] Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]*)"
    r" (?:attention )?backend(?:\.?$| out of potential| \(selected)"
)


class Resolved:
    """``values``: name → what the core decided, last. ``words``: name → the line that said so;
    of sizes that were dropped also where the core has not said yet which it captured."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.words: dict[str, str] = {}
        self._backends: set[str] = set()

    def read(self, line: str) -> None:
        """One more line of an engine that has not initialised yet: no request is in it."""
        words = _PREFIX.sub("", line)[:LINE_LIMIT]
        if found := _BACKEND.search(line):
            self._backends.add(found.group(1))  # layers of several kinds may need several
            self._decide("attention_backend", ",".join(sorted(self._backends)), words)
        elif found := _CAPTURED.search(line):
            mode, sizes = found.groups()
            self._decide("graph_mode", mode, words)
            # Of decodes alone, sizes beyond max_num_seqs are in the grid and never captured.
            if mode != GraphMode.FULL_DECODE_ONLY.value:
                self.values["graph_sizes"] = sizes
                self.words.setdefault("graph_sizes", words)
        elif _SKIPPED.search(line):
            self._decide("graph_mode", GraphMode.NONE.value, words)
            self._decide("graph_sizes", NO_SIZES, words)
        elif found := _MODE.search(line):
            self._decide("graph_mode", found.group(1), words)
        elif _SIZES.search(line):
            self.words["graph_sizes"] = words

    def _decide(self, name: str, value: str, words: str) -> None:
        """The first line that says a value says why."""
        if self.values.get(name) != value:
            self.values[name], self.words[name] = value, words
