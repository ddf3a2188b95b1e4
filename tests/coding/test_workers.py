"""Threads for groups of lanes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rhnzip.coding.workers import SPIN, Workers, available_threads


@pytest.fixture
def torch_threads() -> Any:
    """Set torch's threads to a number of its own, and back."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def appender(done: list[int], number: int) -> Callable[[], None]:
    return lambda: done.append(number)


@pytest.mark.parametrize(("threads", "tasks"), [(1, 1), (2, 2), (3, 3), (3, 2), (2, 7), (1, 3)])
def test_every_task_runs_once_before_run_returns(threads: int, tasks: int) -> None:
    with Workers(threads) as workers:
        for _ in range(20):
            done: list[int] = []
            workers.run([appender(done, number) for number in range(tasks)])
            assert sorted(done) == list(range(tasks))


def test_tasks_run_side_by_side() -> None:
    meeting = threading.Barrier(3, timeout=60)
    with Workers(3) as workers:
        workers.run([meeting.wait] * 3)


def test_torch_runs_single_threaded_meanwhile(torch_threads: int) -> None:
    seen: list[int] = []
    with Workers(2) as workers:
        meeting = threading.Barrier(2, timeout=60)

        def task() -> None:
            meeting.wait()
            seen.append(torch.get_num_threads())

        workers.run([task, task])
    assert seen == [1, 1]
    assert torch.get_num_threads() == torch_threads


@pytest.mark.parametrize("sleepy", [True, False])
def test_a_lone_task_has_torchs_threads_if_they_soon_sleep(
    sleepy: bool, torch_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sleepy:
        monkeypatch.setenv(SPIN, "20000")
    else:
        monkeypatch.delenv(SPIN, raising=False)
    seen: list[int] = []
    tasks = [lambda: seen.append(torch.get_num_threads())] * 2
    with Workers(2) as workers:
        for count in (1, 2, 1):
            workers.run(tasks[:count])
    assert seen == ([2, 1, 1, 2] if sleepy else [1, 1, 1, 1])
    assert torch.get_num_threads() == torch_threads


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_errors_reach_the_caller_after_all_tasks_are_done(failing: int, torch_threads: int) -> None:
    done: list[int] = []

    def fail() -> None:
        raise KeyError(failing)

    with Workers(2) as workers:
        tasks = [appender(done, number) for number in range(3)]
        tasks[failing] = fail
        with pytest.raises(KeyError, match=str(failing)):
            workers.run(tasks)
        assert sorted(done) == sorted({0, 1, 2} - {failing})
        workers.run(tasks[:failing] + tasks[failing + 1 :])  # still at work
    assert torch.get_num_threads() == torch_threads


def test_interrupt_in_a_thread_reaches_the_caller() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with Workers(2) as workers, pytest.raises(KeyboardInterrupt):
        workers.run([lambda: None, interrupt])


def test_no_thread_outlives_the_workers(torch_threads: int) -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="in the block"), Workers(4):
        assert threading.active_count() == before + 3
        raise RuntimeError("in the block")
    assert threading.active_count() == before
    assert torch.get_num_threads() == torch_threads


def test_available_threads_are_those_of_this_process() -> None:
    assert 1 <= available_threads() <= (os.cpu_count() or 1)
