"""Threads for groups of lanes. Lanes are independent within a step, so who computes them changes no bit.

Plain threads and one queue: numba kernels and torch products release the GIL. torch's own threads are held to
one while workers run, since two levels of threads on the same cores wait for each other. Only a task that is
alone may spread its products over torch's threads, and only if these soon sleep when they idle (SPIN).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import torch

Task = Callable[[], Any]

SPIN = "GOMP_SPINCOUNT"
"""How long torch's idle threads spin, where it runs on GNU OpenMP; read when torch is loaded. By default they
spin for so long that the next tasks wait for the processor. The command sets it."""


def available_threads() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Runs equal tasks side by side; a context manager, used from one thread."""

    def __init__(self, threads: int) -> None:
        """`threads` counts the calling thread, which takes the first task itself."""
        self.threads = threads
        self._spreads = threads > 1 and SPIN in os.environ
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._running: list[threading.Thread] = []

    def __enter__(self) -> Workers:
        """Start the threads."""
        self._torch_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for _ in range(self.threads - 1):
            thread = threading.Thread(target=self._serve, daemon=True)
            thread.start()
            self._running.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the threads and give torch its own back."""
        for _ in self._running:
            self._tasks.put(None)
        for thread in self._running:
            thread.join()
        self._running.clear()
        torch.set_num_threads(self._torch_threads)

    def _serve(self) -> None:
        torch.set_num_threads(1)
        while (task := self._tasks.get()) is not None:
            try:
                task()
                self._done.put(None)
            except BaseException as error:  # handed to the caller, who raises it
                self._done.put(error)

    def run(self, tasks: Sequence[Task]) -> None:
        """Run all tasks and return when the last is done; the first error is raised."""
        if self._spreads:
            torch.set_num_threads(self.threads if len(tasks) == 1 else 1)
        own = tasks[:1] if self._running else tasks
        for task in tasks[len(own) :]:
            self._tasks.put(task)
        failure: BaseException | None = None
        for task in own:
            try:
                task()
            except BaseException as error:
                failure = failure or error
        for _ in tasks[len(own) :]:
            error_there = self._done.get()
            failure = failure or error_there
        if failure is not None:
            raise failure
