"""Ctrl-C: training ends at the next step with a checkpoint, a second one passes through, and handlers are restored."""

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from strictstep.loop import fit


def step(model: Any, batch: Any) -> Any:
    return model(batch).pow(2).mean()


def press() -> None:
    signal.raise_signal(signal.SIGINT)


class Run:
    def __init__(self, folder: Path | None, **options: Any) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 1), nn.Dropout())
        optimizer = SGD(model.parameters(), lr=1e-3)
        self.arguments = (model, step, [torch.ones(4, 2) * n for n in range(5)])
        self.options = {"optimizer": optimizer, "max_epochs": 2, "checkpoint": folder, "progress_bar": False, **options}

    def __call__(self, **options: Any) -> Any:
        return fit(*self.arguments, **{**self.options, **options})


def pressed_after(count: int, times: int = 1) -> Any:
    """An `after_step` in which Ctrl-C is pressed."""
    left = iter(range(count - 1))

    def after_step(report: Any) -> None:
        if next(left, None) is None:
            for _ in range(times):
                press()

    return after_step


@pytest.mark.parametrize("at", [1, 3, 5, 8])
def test_training_ends_at_the_next_step_and_goes_on_from_there(tmp_path: Path, at: int) -> None:
    expected = Run(None)()
    result = Run(tmp_path)(after_step=pressed_after(at))
    assert (result.stopped, result.global_step, result.history) == (
        "interrupted",
        at,
        expected.history[: (at - 1) // 5],
    )
    assert Run(tmp_path)(resume=True) == expected


def test_without_a_checkpoint_it_only_ends() -> None:
    assert Run(None)(after_step=pressed_after(2)).stopped == "interrupted"


def test_a_second_one_passes_through() -> None:
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        Run(None)(after_step=pressed_after(2, times=2))


def test_a_run_within_a_run_ends_with_the_one_around_it() -> None:
    before = signal.getsignal(signal.SIGINT)
    inner: list[Any] = []

    def after_step(report: Any) -> None:
        inner.append(Run(None)(after_step=pressed_after(2)))

    outer = Run(None)(after_step=after_step)
    assert [(run.stopped, run.global_step) for run in (*inner, outer)] == [("interrupted", 2), ("interrupted", 1)]
    assert signal.getsignal(signal.SIGINT) is before


def test_the_handler_from_before_is_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    Run(None)()
    assert signal.getsignal(signal.SIGINT) is before
    Run(None)(after_step=pressed_after(2))
    assert signal.getsignal(signal.SIGINT) is before


def test_the_handler_from_before_is_back_after_an_error() -> None:
    def failing(report: Any) -> None:
        raise ValueError("no")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match=r"^no\n"):
        Run(None)(after_step=failing)
    assert signal.getsignal(signal.SIGINT) is before


def test_one_that_comes_while_validation_runs_leaves_it_to_the_resumed_run(tmp_path: Path) -> None:
    def validation_step(model: Any, batch: Any) -> Any:
        return step(model, batch) + torch.rand(())

    def interrupted_step(model: Any, batch: Any, batch_idx: int, epoch: int) -> Any:
        if (epoch, batch_idx) == (1, 2):
            press()
        return validation_step(model, batch)

    batches = [torch.ones(4, 2)] * 4
    expected = Run(None, validation_step=validation_step, validation_batches=batches)()
    result = Run(tmp_path, validation_step=interrupted_step, validation_batches=batches)()
    assert (result.stopped, result.history) == ("interrupted", expected.history[:1])
    assert Run(tmp_path, validation_step=validation_step, validation_batches=batches)(resume=True) == expected


def test_the_bar_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    Run(None, progress_bar=True)(after_step=pressed_after(2))
    assert "epoch 0/1  (2 of 5 steps in" in capsys.readouterr().err


def test_where_it_is_ignored_it_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert Run(None)(after_step=pressed_after(2)).stopped == "max_epochs"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_no_handler_is_set() -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(Run(None)().stopped))
    thread.start()
    thread.join()
    assert results == ["max_epochs"]


def test_a_loader_that_dies_of_the_same_ctrl_c_does_not_hide_it() -> None:
    def batches() -> Any:
        yield torch.ones(4, 2)
        press()
        raise RuntimeError("DataLoader worker exited unexpectedly")

    run = Run(None, max_epochs=1)
    run.arguments = (*run.arguments[:2], batches())
    result = run()
    assert (result.stopped, result.global_step) == ("interrupted", 1)
