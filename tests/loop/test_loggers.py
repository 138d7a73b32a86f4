"""The loggers: what they write, what a killed run leaves, and how a resumed one goes on."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from lightning.pytorch.loggers import CSVLogger
from pydantic import ValidationError

from strictstep.loop import LoopError, fit
from strictstep.loop.history import LoggedEpoch, LoggedStep
from strictstep.loop.loggers import JSONLLogger, TensorBoardLogger
from strictstep.schema.cli import main as strictstep
from strictstep.schema.step_record import HistoryRecord


def lines(logger: JSONLLogger) -> list[dict[str, Any]]:
    """The records of a history."""
    return [json.loads(line) for line in logger.path.read_text().splitlines()]


def train(loggers: list[Any], epochs: int = 2) -> None:
    """Three steps in each epoch, on losses 1, 2 and 3, each epoch validated; nothing moves, since the rate is 0."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)

    def training_step(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, Any]:
        loss = model(batch).mean()
        return {"loss": loss, "log": {"double": 2 * loss}}

    def validation_step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).mean()
        return loss

    fit(
        model,
        training_step,
        [torch.full((1, 1), value) for value in (1.0, 2.0, 3.0)],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        max_epochs=epochs,
        validation_step=validation_step,
        validation_batches=[torch.full((1, 1), 5.0)],
        loggers=loggers,
        progress_bar=False,
    )


def test_a_run_gives_a_line_for_each_step_and_each_epoch(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "run.jsonl")
    train([logger])
    found = [(line["kind"], line["epoch"], line["global_step"], line["values"]) for line in lines(logger)]
    assert found == [
        ("step", 0, 1, {"loss": 1.0, "double": 2.0}),
        ("step", 0, 2, {"loss": 2.0, "double": 4.0}),
        ("step", 0, 3, {"loss": 3.0, "double": 6.0}),
        ("epoch", 0, 3, {"loss": 2.0, "double": 4.0, "val_loss": 5.0}),
        ("step", 1, 4, {"loss": 1.0, "double": 2.0}),
        ("step", 1, 5, {"loss": 2.0, "double": 4.0}),
        ("step", 1, 6, {"loss": 3.0, "double": 6.0}),
        ("epoch", 1, 6, {"loss": 2.0, "double": 4.0, "val_loss": 5.0}),
    ]


def test_the_command_accepts_what_a_run_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = JSONLLogger(tmp_path / "run.jsonl")
    logger.log_metrics({"loss": float("nan"), "best": float("-inf"), "examples": 2**70}, 1)
    logger.log_epoch({}, 0, 1)
    assert strictstep(["check", str(logger.path)]) == 0
    assert "2 lines, 0 findings" in capsys.readouterr().err


def test_the_same_run_writes_the_same_bytes(tmp_path: Path) -> None:
    first, second = JSONLLogger(tmp_path / "first.jsonl"), JSONLLogger(tmp_path / "second.jsonl")
    train([first])
    train([second])
    assert first.path.read_bytes() == second.path.read_bytes()


def test_the_lines_follow_their_own_json_schema(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "run.jsonl")
    logger.log_metrics({"loss": float("inf"), "correct": True}, 1)
    logger.log_epoch({"val_loss": 0.5}, 0, 1)
    models: list[type[HistoryRecord]] = [LoggedStep, LoggedEpoch]
    for model, line in zip(models, lines(logger), strict=True):
        schema = model.model_json_schema(mode="serialization")
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate(line)
        assert schema["properties"]["kind"]["const"] == line["kind"]


def test_a_line_reads_back_as_the_record_that_it_was(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "run.jsonl")
    logger.log_metrics({"loss": float("nan"), "worst": float("inf")}, 7)
    text = logger.path.read_text().strip()
    record = LoggedStep.model_validate_json(text)
    assert record.global_step == 7
    assert record.values["worst"] == float("inf")
    assert record.model_dump_json() == text


def test_tensors_and_numpy_numbers_are_written_as_numbers(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "run.jsonl")
    given = {"loss": torch.tensor(0.5), "images": torch.tensor(2**60 + 1), "lr": np.float32(0.25), "n": np.int64(3)}
    logger.log_metrics(given, 1)
    assert lines(logger)[0]["values"] == {"loss": 0.5, "images": 2**60 + 1, "lr": 0.25, "n": 3}


def test_what_is_no_number_is_refused_and_leaves_no_line(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "run.jsonl")
    with pytest.raises(ValidationError, match="got str 'warm'"):
        logger.log_metrics({"note": "warm"}, 1)
    assert not logger.path.exists()


def test_another_run_begins_at_epoch_0(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "run.jsonl")
    train([logger], epochs=2)
    train([logger], epochs=1)
    assert [line["epoch"] for line in lines(logger)] == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]


def test_a_run_that_is_not_resumed_starts_the_file_anew(tmp_path: Path) -> None:
    for loss in (0.5, 0.25):
        logger = JSONLLogger(tmp_path / "deep" / "run.jsonl")
        logger.log_metrics({"loss": loss}, 1)
        logger.close()
    assert [line["values"] for line in lines(logger)] == [{"loss": 0.25}]


def test_a_resumed_run_cuts_off_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    killed, whole = JSONLLogger(tmp_path / "killed.jsonl"), JSONLLogger(tmp_path / "whole.jsonl")
    for logger in (killed, whole):
        logger.log_metrics({"loss": 0.5}, 1)
        logger.log_epoch({"loss": 0.5}, 0, 1)
    state = killed.state_dict()
    killed.log_metrics({"loss": 0.1}, 2)
    killed.path.write_bytes(killed.path.read_bytes()[:-5])

    resumed = JSONLLogger(killed.path)
    resumed.load_state_dict(state)
    for logger in (resumed, whole):
        logger.log_metrics({"loss": 0.25}, 2)
    assert killed.path.read_bytes() == whole.path.read_bytes()


def test_a_closed_logger_goes_on_where_it_was(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "run.jsonl")
    for step in (1, 2):
        logger.log_metrics({}, step)
        logger.close()
    assert [line["global_step"] for line in lines(logger)] == [1, 2]


def test_a_history_shorter_than_its_checkpoint_says_is_refused(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "run.jsonl")
    logger.log_metrics({"loss": 0.5}, 1)
    state = logger.state_dict()
    os.truncate(logger.path, 10)
    for size in (10, 0):
        with pytest.raises(
            LoopError, match=rf"at least {state['position']} bytes in `.*run\.jsonl`.*, got {size} "
        ) as caught:
            JSONLLogger(logger.path).load_state_dict(state)
        assert caught.value.code == "checkpoint_differs"
        logger.path.unlink(missing_ok=True)


def test_a_checkpoint_before_the_first_line_starts_the_file_anew(tmp_path: Path) -> None:
    state = JSONLLogger(tmp_path / "run.jsonl").state_dict()
    (tmp_path / "run.jsonl").write_text("of a run that was killed\n")
    resumed = JSONLLogger(tmp_path / "run.jsonl")
    resumed.load_state_dict(state)
    resumed.log_metrics({}, 1)
    assert len(lines(resumed)) == 1


KILLED = """
import os, signal
from strictstep.loop.loggers import JSONLLogger

logger = JSONLLogger("run.jsonl")
for step in range(1, 1001):
    logger.log_metrics({"loss": 1 / step}, step)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_run_has_every_line_that_was_logged(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    assert run.returncode == -signal.SIGKILL
    assert [line["global_step"] for line in lines(JSONLLogger(tmp_path / "run.jsonl"))] == list(range(1, 1001))


def test_lightnings_own_logger_takes_the_values_unchanged(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="digits")
    train([logger], epochs=1)
    logger.save()
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["loss"] for row in rows if row["loss"]] == ["1.0", "2.0", "3.0"]
    assert [row["step"] for row in rows if row["loss"]] == ["1", "2", "3"]
    assert {row["val_loss"] for row in rows if row["val_loss"]} == {"5.0"}


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads: steps and values by name."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = reading.EventAccumulator(str(folder)).Reload()
    return {
        name: [(event.step, event.value) for event in accumulator.Scalars(name)]
        for name in accumulator.Tags()["scalars"]
    }


def test_tensorboard_reads_steps_and_epochs(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    train([logger], epochs=1)
    logger.close()
    assert events(tmp_path) == {
        "loss": [(1, 1.0), (2, 2.0), (3, 3.0)],
        "double": [(1, 2.0), (2, 4.0), (3, 6.0)],
        "epoch/loss": [(3, 2.0)],
        "epoch/double": [(3, 4.0)],
        "epoch/val_loss": [(3, 5.0)],
        "epoch": [(3, 0.0)],
    }


def test_tensorboard_hides_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    killed = TensorBoardLogger(tmp_path)
    killed.log_metrics({"loss": 1.0}, 1)
    state = killed.state_dict()
    for step in (2, 3):
        killed.log_metrics({"loss": -1.0}, step)
    killed.close()
    resumed = TensorBoardLogger(tmp_path)
    resumed.load_state_dict(state)
    resumed.log_metrics({"loss": 2.0}, 2)
    resumed.close()
    assert events(tmp_path)["loss"] == [(1, 1.0), (2, 2.0)]


def test_without_tensorboard_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'strictstep\[tensorboard\]'"):
        TensorBoardLogger(tmp_path)


def test_tensorboard_is_imported_only_when_it_is_used() -> None:
    code = "import sys, strictstep.loop, strictstep.loop.loggers; assert 'tensorboard' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
