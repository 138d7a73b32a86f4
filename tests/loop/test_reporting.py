"""The progress bar: what it shows, when it reads, and where it stays silent."""

import io
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import redirect_stderr, suppress
from typing import Any, Self

import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from strictstep.loop import reporting
from strictstep.loop.reporting import ProgressBar, number_text, seconds_text, values_text

if sys.platform != "win32":
    import pty
    import termios

needs_terminals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")


class CountsReads(TorchDispatchMode):
    """Counts how often a value is read from its tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class Terminal:
    """A pseudo-terminal in the place of `sys.stderr`, 100 columns wide."""

    def __enter__(self) -> Self:
        self._reads_from, writes_to = pty.openpty()
        os.set_blocking(self._reads_from, False)
        termios.tcsetwinsize(writes_to, (24, 100))
        self._stream = os.fdopen(writes_to, "w", encoding="utf-8")
        self._instead = redirect_stderr(self._stream)
        self._instead.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._instead.__exit__(None, None, None)
        self._stream.close()
        os.close(self._reads_from)

    def shown(self) -> list[str]:
        """Everything that was shown, split where a line was begun anew."""
        self._stream.flush()
        text = b"".join(iter(self._read, b"")).decode()
        return [line.strip() for line in text.replace("\n", "\r").split("\r") if line.strip()]

    def _read(self) -> bytes:
        time.sleep(0.02)  # the other end arrives a little later
        with suppress(BlockingIOError):
            return os.read(self._reads_from, 4096)
        return b""


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting between two refreshes: only `log_every` counts."""
    monkeypatch.setattr(reporting, "BAR_SECONDS", 0.0)
    monkeypatch.setattr(reporting, "LINE_SECONDS", 0.0)


def a_bar(total: int | None = 4, log_every: int = 1, max_epochs: int | None = 3, enabled: bool = True) -> ProgressBar:
    return ProgressBar(total=total, epoch=0, max_epochs=max_epochs, enabled=enabled, log_every=log_every)


def update(bar: ProgressBar, values: Mapping[str, Any]) -> None:
    if bar.step():
        bar.show(values)


@pytest.mark.usefixtures("at_once")
def test_outside_a_terminal_there_are_plain_lines_and_one_for_the_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    bar = a_bar(log_every=2)
    for step in range(1, 5):
        update(bar, {"loss": 1 / step, "images": 8 * step})
    bar.close({"loss": 0.52, "val_loss": 0.5})
    *lines, last = capsys.readouterr().err.splitlines()
    assert lines == [
        "epoch 0/2  step 2/4  loss 0.5000  images 16",
        "epoch 0/2  step 4/4  loss 0.2500  images 32",
    ]
    assert last.startswith("epoch 0/2  loss 0.5200  val_loss 0.5000  (4 steps in ")


def test_plain_lines_are_seconds_apart_whatever_log_every_says(capsys: pytest.CaptureFixture[str]) -> None:
    bar = a_bar(total=1000)
    for _ in range(1000):
        update(bar, {"loss": 0.5})
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("at_once")
def test_lengths_that_are_not_known_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    bar = a_bar(total=None, max_epochs=None)
    update(bar, {"loss": 0.5})
    bar.close({})
    progress, epoch = capsys.readouterr().err.splitlines()
    assert progress == "epoch 0  step 1  loss 0.5000"
    assert epoch.startswith("epoch 0  (1 step in ")


def test_a_pass_of_no_epoch_is_an_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar(total=1, epoch=None, max_epochs=None, enabled=True, log_every=1)
    update(bar, {"loss": 0.5})
    bar.close({"loss": 0.5})
    assert capsys.readouterr().err.startswith("evaluation  loss 0.5000  (1 step in ")


@pytest.mark.usefixtures("at_once")
def test_an_epoch_that_ended_early_says_after_how_many_steps(capsys: pytest.CaptureFixture[str]) -> None:
    bar = a_bar(total=120)
    for _ in range(50):
        bar.step()
    bar.close({})
    assert "(50 of 120 steps in " in capsys.readouterr().err


@pytest.mark.usefixtures("at_once")
@needs_terminals
def test_a_terminal_shows_a_bar_and_keeps_only_the_line_of_the_epoch() -> None:
    with Terminal() as terminal:
        bar = a_bar()
        update(bar, {"loss": torch.tensor(0.25), "accuracy": 0.5})
        bar.close({"loss": 0.52})
        empty, refreshed, epoch = terminal.shown()
    assert empty.startswith("epoch 0/2:   0%|")
    assert refreshed.startswith("epoch 0/2:  25%|")
    assert "| 1/4 [" in refreshed
    assert refreshed.endswith("steps/s, loss 0.2500  accuracy 0.5000]")
    assert epoch.startswith("epoch 0/2  loss 0.5200  (1 of 4 steps in ")


@pytest.mark.usefixtures("at_once")
@needs_terminals
def test_the_bar_shows_the_very_values_that_came_last() -> None:
    with Terminal() as terminal:
        bar = a_bar()
        for loss in (1.0, 1000.5, 2.0):
            update(bar, {"loss": loss})
        shown = [line.rpartition("loss ")[2] for line in terminal.shown()[1:]]
        bar.close({})
    assert shown == ["1.000]", "1000]", "2.000]"]


@pytest.mark.usefixtures("at_once")
@needs_terminals
def test_the_bar_counts_every_step_between_refreshes() -> None:
    with Terminal() as terminal:
        bar = a_bar(total=10, log_every=3)
        for _ in range(10):
            update(bar, {})
        counts = [line.rpartition("| ")[2].partition(" [")[0] for line in terminal.shown()]
        bar.close({})
    assert counts == ["0/10", "3/10", "6/10", "9/10"]


@pytest.mark.usefixtures("at_once")
def test_a_name_that_is_absent_is_not_shown_and_a_nan_is(capsys: pytest.CaptureFixture[str]) -> None:
    bar = a_bar()
    update(bar, {"loss": 0.5, "accuracy": 0.75})
    update(bar, {"loss": float("nan")})
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("loss 0.5000  accuracy 0.7500")
    assert second.endswith("  loss nan")
    assert "accuracy" not in second


@pytest.mark.usefixtures("at_once")
def test_values_are_read_only_when_they_are_shown() -> None:
    bar = a_bar(total=100, log_every=10)
    values = {"loss": torch.tensor(0.5), "accuracy": torch.tensor(0.75)}
    with CountsReads() as counted:
        for _ in range(99):
            update(bar, values)
    assert counted.reads == 9 * len(values)


@needs_terminals
def test_a_fast_loop_is_read_only_as_often_as_the_terminal_is_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "BAR_SECONDS", 3600.0)
    with Terminal() as terminal, CountsReads() as counted:
        bar = a_bar(total=100)
        for _ in range(100):
            update(bar, {"loss": torch.tensor(0.5)})
        shown = terminal.shown()
        bar.close({})
    assert counted.reads == 0
    assert len(shown) == 1


def test_a_bar_that_is_not_enabled_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    bar = a_bar(enabled=False)
    update(bar, {"loss": 0.5})
    bar.close({"loss": 0.5})
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("at_once")
def test_after_it_is_closed_a_bar_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    bar = a_bar()
    bar.close({})
    update(bar, {"loss": 0.5})
    bar.close({"loss": 0.5})
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.usefixtures("at_once")
def test_only_the_first_rank_shows_anything(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        a_bar().close({"rank": rank})
        torch.distributed.destroy_process_group()
    (line,) = capsys.readouterr().err.splitlines()
    assert "rank 0" in line


def test_a_process_without_stderr_trains_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    bar = a_bar()
    update(bar, {"loss": 0.5})
    bar.close({"loss": 0.5})
    assert capsys.readouterr().out == ""


@needs_terminals
def test_a_bar_starts_no_thread() -> None:
    before = threading.active_count()
    with Terminal():
        bar = a_bar()
        assert threading.active_count() == before
        bar.close({})


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.000"),
        (0.987654, "0.9877"),
        (-12.3456, "-12.35"),
        (1234.4, "1234"),
        (99999.0, "1.000e+05"),
        (3e-5, "3.000e-05"),
        (1e-4, "0.0001000"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (0, "0"),
        (123456789, "123456789"),
        (2**63, "9223372036854775808"),
        pytest.param(10**5000, "int of 16610 bits", id="huge"),
        (True, "True"),
    ],
)
def test_a_number_has_four_digits_and_an_int_all_of_its(number: float, text: str) -> None:
    assert number_text(number) == text


def test_a_name_stays_on_its_line() -> None:
    assert values_text({"two\nlines": 1, "x" * 100: 2}) == "two\\nlines 1  " + "x" * 37 + "... 2"


def test_an_hour_is_written_as_a_clock_does() -> None:
    assert seconds_text(3723.0) == "1:02:03"


class Tee:
    """A stand-in for stderr, of which nothing but `write` is there."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def test_a_stderr_that_only_writes_gets_its_lines() -> None:
    tee: Any = Tee()
    with redirect_stderr(tee):
        bar = ProgressBar(total=1, epoch=0, max_epochs=1, enabled=True, log_every=1)
        update(bar, {"loss": 0.5})
        bar.close({"loss": 0.5})
    assert tee.text.startswith("epoch 0/0  loss 0.5000  (1 step in ")


def test_a_closed_stderr_ends_no_training() -> None:
    closed = io.StringIO()
    closed.close()
    with redirect_stderr(closed):
        bar = ProgressBar(total=1, epoch=0, max_epochs=1, enabled=True, log_every=1)
        update(bar, {"loss": 0.5})
        bar.close({"loss": 0.5})
