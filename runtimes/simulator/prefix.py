"""The prefix cache of a simulated engine: which blocks of prompts it has computed before.

As vLLM's, it knows whole blocks by all that leads up to them, and the least recently used go
first. Unlike vLLM's, a block that is found takes room of its own while a request holds it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from canaryctl.runtimes.simulator.text import CHARACTERS_PER_TOKEN, Prompt

BLOCK_SIZE = 16  # tokens


def block_keys(prompt: Prompt) -> tuple[bytes, ...]:
    """A key for each whole block of the prompt; equal where the prompts are equal up to its end."""
    size = BLOCK_SIZE * (CHARACTERS_PER_TOKEN if isinstance(prompt, str) else 1)
    keys, last = [], b""
    for begin in range(0, len(prompt) - size + 1, size):
        block = prompt[begin : begin + size]
        text = block if isinstance(block, str) else ",".join(map(str, block))
        last = blake2b(last + text.encode(), digest_size=8).digest()
        keys.append(last)
    return tuple(keys)


class PrefixCache:
    """Holds at most ``blocks``."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def find(self, keys: Sequence[bytes]) -> int:
        """How many of the first blocks are there."""
        found = 0
        for key in keys:
            if key not in self._known:
                break
            self._known.move_to_end(key)
            found += 1
        return found

    def keep(self, keys: Sequence[bytes]) -> None:
        """They have been computed."""
        for key in keys:
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > self._blocks:
            self._known.popitem(last=False)
