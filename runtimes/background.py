"""Work that takes long, beside a controller that must not wait for it."""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """``work`` in a thread of its own, which dies with the controller. Begins at once. It returns
    what it found, or says in words why nothing."""

    def __init__(self, work: Callable[[], T | str], name: str) -> None:
        self._name = name
        self._found: queue.SimpleQueue[T | str] = queue.SimpleQueue()
        self._outcome: T | str | None = None
        self._thread = threading.Thread(
            target=lambda: self._found.put(work()), name=name, daemon=True
        )
        self._thread.start()

    def outcome(self) -> T | str | None:
        """What it found, or why nothing; None while it runs."""
        if self._outcome is None:
            try:
                self._outcome = self._found.get_nowait()
            except queue.Empty:
                if not self._thread.is_alive() and self._found.empty():
                    self._outcome = f"{self._name} ended without a result"
        return self._outcome

    def wait(self, timeout_s: float) -> T | str | None:
        self._thread.join(timeout_s)
        return self.outcome()
