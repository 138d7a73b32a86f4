"""Rule 15: what a checkpoint holds, how it is written, and what it refuses."""

import copy
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn
from torch.optim import LBFGS, SGD, AdamW
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from strictstep.loop import (
    AutomaticOptimization,
    Checkpoint,
    EarlyStopping,
    JSONLLogger,
    LoopError,
    fit,
    saved_run,
)
from strictstep.loop.checkpoint import write
from strictstep.loop.errors import LoopWarning
from strictstep.loop.optimization import Optimization
from strictstep.loop.random_state import seed_all

DATA = TensorDataset(torch.randn(22, 3, generator=torch.Generator().manual_seed(0)))


class Network(nn.Sequential):
    """With dropout, so that it draws random numbers, and with a buffer."""

    def __init__(self, width: int = 4) -> None:
        super().__init__(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 1))


def step(model: Any, batch: Any) -> Any:
    noise = random.random() + float(np.random.rand())
    loss = (model(batch[0]) - noise).pow(2).mean()
    return {"loss": loss, "log": {"noise": noise, "images": len(batch[0])}}


class Killed(BaseException):
    """Stands for the end of the process: nothing in the loop may catch it."""


class Run:
    """A run that can be made again from the start, with everything that decides how it goes."""

    def __init__(self, folder: Path, **options: Any) -> None:
        seed_all(0)
        self.model = Network()
        self.optimizer = AdamW(self.model.parameters(), lr=0.02)
        self.scheduler = ExponentialLR(self.optimizer, 0.9)
        batches = options.pop("batches", None) or DataLoader(DATA, 4, shuffle=True)
        self.arguments = (self.model, options.pop("step", step), batches)
        self.options = {
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "max_epochs": 3,
            "validation_step": step,
            "validation_batches": DataLoader(DATA, 8, shuffle=True),
            "checkpoint": Checkpoint(folder, every_steps=1),
            "early_stopping": EarlyStopping("val_loss", patience=9),
            "progress_bar": False,
            **options,
        }

    def __call__(self, kill_at: int | None = None, **options: Any) -> Any:
        """Fit; with `kill_at` the process ends after so many optimizer steps of this call."""
        left = iter(range(kill_at)) if kill_at is not None else None

        def after_step(report: Any) -> None:
            if left is not None and next(left, None) is None:
                raise Killed

        return fit(*self.arguments, **{**self.options, "after_step": after_step, **options})

    def state(self) -> Any:
        return [self.model.state_dict(), self.optimizer.state_dict(), self.scheduler.state_dict()]


def killed_and_resumed(folder: Path, kills: list[int], **options: Any) -> tuple[Any, Run]:
    """The result of a run that was killed after so many steps, and again after so many more, and so on."""
    for kill_at in kills:
        with pytest.raises(Killed):
            Run(folder, **options)(kill_at, resume=True)
    run = Run(folder, **options)
    return run(resume=True), run


def same(left: Any, right: Any) -> bool:
    """Bit for bit."""
    return repr(left) == repr(right) if not isinstance(left, torch.Tensor) else torch.equal(left, right)


def require_same(left: Any, right: Any) -> None:
    """Compare nested states bit for bit."""
    leaves = tree_leaves
    pairs = list(zip(leaves(left), leaves(right), strict=True))
    assert pairs
    assert all(same(*pair) for pair in pairs)


KILLS = [[1], [5], [6], [7, 2, 4], [11, 1, 1], [17]]


@pytest.mark.parametrize("kills", KILLS, ids=str)
def test_a_run_that_was_killed_and_resumed_ends_as_one_that_was_not(tmp_path: Path, kills: Any) -> None:
    whole = Run(tmp_path / "whole")
    expected = whole()
    result, run = killed_and_resumed(tmp_path / "killed", kills)
    assert result == expected
    require_same(run.state(), whole.state())


@pytest.mark.parametrize("every", [3, 4, None])
def test_steps_since_the_checkpoint_are_taken_again(tmp_path: Path, every: Any) -> None:
    whole = Run(tmp_path / "whole")
    expected = whole()
    result, run = killed_and_resumed(tmp_path / "k", [7, 3], checkpoint=Checkpoint(tmp_path / "k", every_steps=every))
    assert result == expected
    require_same(run.state(), whole.state())


class OwnGenerator(Dataset[Any]):
    """Draws from a generator of its own, as augmentations do."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return (torch.randn(3, generator=self.generator) + torch.randn(3) + index,)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": lambda p: LBFGS(p, lr=0.1, max_iter=3)},
        {"optimizer": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True), "gradient_accumulation_steps": 2},
        {"optimizer": lambda p: AdamW(p, lr=0.1), "precision": "fp16-mixed"},
    ],
    ids=["LBFGS", "SGD", "fp16"],
)
def test_every_kind_of_optimizer_goes_on_where_it_was(tmp_path: Path, options: Any) -> None:
    def run(folder: Path) -> Run:
        made = Run(folder, **options)
        made.optimizer = made.options["optimizer"] = options["optimizer"](made.model.parameters())
        made.options |= {"scheduler": None, "max_epochs": 2}
        made.scheduler = ExponentialLR(made.optimizer, 1.0)
        return made

    whole = run(tmp_path / "whole")
    expected = whole()
    for kill_at in (2, 3):
        with pytest.raises(Killed):
            run(tmp_path / "k")(kill_at, resume=True)
    last = run(tmp_path / "k")
    assert last(resume=True) == expected
    require_same(last.state()[:2], whole.state()[:2])


def test_manual_optimization_goes_on_where_it_was(tmp_path: Path) -> None:
    def manual(model: Any, batch: Any, optimizers: Any) -> Any:
        loss = step(model, batch)["loss"]
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return {"loss": loss}

    def run(folder: Path) -> Run:
        made = Run(folder, step=manual)
        made.options["optimizer"] = [AdamW(layer.parameters(), lr=0.01) for layer in (made.model[0], made.model[3])]
        made.options["scheduler"] = [ExponentialLR(optimizer, 0.9) for optimizer in made.options["optimizer"]]
        return made

    whole = run(tmp_path / "whole")
    expected = whole()
    with pytest.raises(Killed):
        run(tmp_path / "k")(8)
    last = run(tmp_path / "k")
    assert last(resume=True) == expected
    require_same(last.state()[0], whole.state()[0])


def loaders() -> Any:
    own = OwnGenerator()
    sampler = RandomSampler(own, generator=torch.Generator().manual_seed(6))
    yield "generator of the loader", DataLoader(DATA, 4, shuffle=True, generator=torch.Generator().manual_seed(7))
    yield "generators of sampler and dataset", DataLoader(own, 4, sampler=sampler)
    yield "workers", DataLoader(DATA, 4, shuffle=True, num_workers=2)
    yield "replacement", DataLoader(DATA, 4, sampler=RandomSampler(DATA, replacement=True, num_samples=20))
    yield "list", [(torch.randn(4, 3, generator=torch.Generator().manual_seed(n)),) for n in range(5)]


@pytest.mark.parametrize("kind", [name for name, _ in loaders()])
def test_loaders_that_replay_from_their_generators_go_on_where_they_were(tmp_path: Path, kind: str) -> None:
    def batches() -> Any:
        return dict(loaders())[kind]

    expected = Run(tmp_path / "whole", batches=batches())()
    for kill_at in (2, 6):
        with pytest.raises(Killed):
            Run(tmp_path / "k", batches=batches())(kill_at, resume=True)
    assert Run(tmp_path / "k", batches=batches())(resume=True) == expected


class Stateful:
    """A loader that says where it stands, as torchdata's does; it counts what it gave out."""

    def __init__(self) -> None:
        self.at = self.epoch = 0
        self.given: list[Any] = []

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(5, generator=generator).tolist()
        while self.at < 5:
            self.at += 1
            self.given.append((self.epoch, order[self.at - 1]))
            yield (torch.full((4, 3), float(order[self.at - 1])),)
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> Any:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


def test_a_stateful_loader_is_asked_for_its_position_and_skips_nothing(tmp_path: Path) -> None:
    whole = Stateful()
    expected = Run(tmp_path / "whole", batches=whole)()
    first, second = Stateful(), Stateful()
    with pytest.raises(Killed):
        Run(tmp_path / "k", batches=first)(7)
    assert Run(tmp_path / "k", batches=second)(resume=True) == expected
    # the step that was killed came after the last checkpoint: its batch is given again
    assert first.given[:-1] + second.given == whole.given


def test_accumulation_tbptt_and_hiddens_go_on_in_mid_epoch(tmp_path: Path) -> None:
    def chunked(model: Any, batch: Any, hiddens: Any) -> Any:
        total = batch.mean() + (0 if hiddens is None else hiddens["sum"]) + model(torch.ones(4, 3)).mean()
        return {"loss": total.pow(2), "hiddens": {"sum": total, "more": [None]}}

    options: dict[str, Any] = {
        "step": chunked, "batches": [torch.full((2, 5), float(n)) for n in range(4)], "tbptt": (2, 1),
        "carry_hiddens": True, "max_epochs": 2, "early_stopping": None,
        "validation_step": None, "validation_batches": None,
    }  # fmt: skip
    expected = Run(tmp_path / "whole", **options)()
    result, _ = killed_and_resumed(tmp_path / "k", [2, 3, 4, 5], **options)
    assert result == expected
    del options["tbptt"], options["carry_hiddens"], options["step"]
    options |= {"batches": None, "gradient_accumulation_steps": 4, "max_epochs": 4}
    expected = Run(tmp_path / "whole2", **options)()
    assert killed_and_resumed(tmp_path / "k2", [1, 2, 1], **options)[0] == expected


def test_a_finished_run_that_is_resumed_gives_its_result_again(tmp_path: Path) -> None:
    expected = Run(tmp_path)()
    assert Run(tmp_path)(resume=True) == expected


def test_a_run_that_ended_by_max_steps_goes_on_with_more(tmp_path: Path) -> None:
    expected = Run(tmp_path / "whole")()
    first = Run(tmp_path / "k")(max_steps=8)
    assert (first.stopped, first.global_step, len(first.history)) == ("max_steps", 8, 2)
    assert Run(tmp_path / "k")(max_steps=8, resume=True) == first
    assert Run(tmp_path / "k")(resume=True) == expected


def test_early_stopping_stays_stopped(tmp_path: Path) -> None:
    stopping: dict[str, Any] = {"early_stopping": EarlyStopping("images", mode="max", patience=1)}
    expected = Run(tmp_path)(**stopping)
    assert expected.stopped == "early_stopping"
    assert Run(tmp_path)(resume=True, **stopping) == expected


def test_the_best_is_kept_by_a_named_value(tmp_path: Path) -> None:
    run = Run(tmp_path, checkpoint=Checkpoint(tmp_path, monitor="val_loss"), max_epochs=6, early_stopping=None)
    history = run().history
    losses = [record["val_loss"] for record in history]
    best = torch.load(tmp_path / "best.pt", weights_only=True)
    assert best["best"] == min(losses)
    assert best["epoch"] == losses.index(min(losses)) + 1
    assert torch.load(tmp_path / "last.pt", weights_only=True)["best"] == min(losses)


def test_a_path_is_a_checkpoint_folder_and_resume_takes_a_file_or_a_folder(tmp_path: Path) -> None:
    expected = Run(tmp_path / "a", checkpoint=str(tmp_path / "a"), max_epochs=2)()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["last.pt"]
    for place in (tmp_path / "a", tmp_path / "a" / "last.pt"):
        assert Run(tmp_path / "b", checkpoint=None, max_epochs=2)(resume=place) == expected


def test_a_run_killed_while_it_writes_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Run(tmp_path / "whole")()
    saves = iter(range(9))
    save = torch.save

    def half(state: Any, file: Any) -> None:
        if next(saves) == 8:
            file.write(b"half a checkpoint")
            raise Killed
        save(state, file)

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(Killed):
        Run(tmp_path / "k")()
    monkeypatch.setattr(torch, "save", save)
    assert (tmp_path / "k" / "last.pt.tmp").read_bytes() == b"half a checkpoint"
    assert Run(tmp_path / "k")(resume=True) == expected


def noting(order: list[str], note: Any, function: Any) -> Any:
    """The function, noted each time it is called."""

    def noted(*args: Any) -> Any:
        order.append(note(*args))
        return function(*args)

    return noted


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(os, "fsync", noting(order, lambda file: "fsync", os.fsync))
    monkeypatch.setattr(os, "replace", noting(order, lambda old, new: f"replace {new.name}", os.replace))
    checkpoint = Checkpoint(tmp_path, monitor="val_loss")
    Run(tmp_path, checkpoint=checkpoint, max_epochs=1)()
    assert order == ["fsync", "replace best.pt", "fsync", "fsync", "replace last.pt", "fsync"]


def refused(run: Run, resume: Any = True) -> LoopError:
    before = copy.deepcopy(run.state())
    with pytest.raises(LoopError, match=r"^expected") as caught:
        run(resume=resume)
    require_same(run.state(), before)
    return caught.value


def test_a_checkpoint_of_another_accumulation_factor_is_refused(tmp_path: Path) -> None:
    Run(tmp_path)(max_steps=2)
    assert str(refused(Run(tmp_path, gradient_accumulation_steps=2))) == (
        "expected the run that the checkpoint was made for, got another: "
        "`gradient_accumulation_steps` was 1, is 2  [checkpoint_differs]\n"
        "  help: resume with what it was made with, or start anew without `resume`"
    )


def test_a_checkpoint_of_another_model_is_refused_and_its_differences_named(tmp_path: Path) -> None:
    Run(tmp_path)(max_steps=2)
    run = Run(tmp_path)
    other = Network(5)
    run.arguments = (other, *run.arguments[1:])
    run.options |= {"optimizer": AdamW(other.parameters()), "scheduler": None}
    assert refused(run).message == (
        "expected the run that the checkpoint was made for, got another: `model` differs in "
        "`0.weight [4, 3] -> [5, 3]`, `0.bias [4] -> [5]`, `1.weight [4] -> [5]` and more; "
        "`scheduler` was ['ExponentialLR'], is []; `scheduler_interval` was 'epoch', is None"
    )


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    Run(tmp_path)(max_steps=2)
    run = Run(tmp_path)
    optimizer = SGD(run.model.parameters(), lr=0.1)
    run.options |= {"optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}
    assert refused(run).message.endswith("got another: `optimizer` was ['AdamW'], is ['SGD']")


def test_a_checkpoint_that_is_not_there_is_an_error_unless_there_may_be_none_yet(tmp_path: Path) -> None:
    error = refused(Run(tmp_path), resume=tmp_path / "gone.pt")
    assert error.code == "checkpoint_missing"
    assert Run(tmp_path)(resume=True).stopped == "max_epochs"


@pytest.mark.parametrize("content", [b"", b"no checkpoint", "weights"])
def test_another_kind_of_file_is_an_error(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "file.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(Network().state_dict(), path)
    assert refused(Run(tmp_path), resume=path).code == "checkpoint_unreadable"


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_checkpoint_runs_no_code_when_it_is_loaded(tmp_path: Path) -> None:
    torch.save({"format": 2, "made_for": Malicious(tmp_path / "was_run")}, tmp_path / "evil.pt")
    assert refused(Run(tmp_path), resume=tmp_path / "evil.pt").code == "checkpoint_unreadable"
    assert not (tmp_path / "was_run").exists()


class Rates:
    """A rate function whose state torch puts into the scheduler's `state_dict`."""

    def __init__(self) -> None:
        self.kind = np.float32(0.5)

    def __call__(self, epoch: int) -> float:
        return 0.5


def test_a_state_that_only_pickle_could_load_is_found_at_the_first_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.options["scheduler"] = LambdaLR(run.optimizer, Rates())
    with pytest.raises(LoopError, match=r"expected states of tensors and plain values in a checkpoint") as caught:
        run(max_steps=3)
    assert caught.value.code == "checkpoint_unsavable"


def test_with_a_torchmetrics_object_checkpoints_are_written_at_epoch_ends_only(tmp_path: Path) -> None:
    def run() -> Run:
        metric = torchmetrics.MeanMetric()

        def counted(model: Any, batch: Any) -> Any:
            output = step(model, batch)
            metric.update(output["loss"].detach())
            return {**output, "metrics": {"mean": metric}}

        return Run(tmp_path / "k", step=counted, validation_step=step)

    expected = Run(tmp_path / "whole")()
    with pytest.warns(LoopWarning, match=r"^no checkpoint within an epoch: its `metrics`"), pytest.raises(Killed):
        run()(9, resume=True)
    assert torch.load(tmp_path / "k" / "last.pt", weights_only=True)["within"] is None
    with pytest.warns(LoopWarning, match=r"^no checkpoint within an epoch"):
        history = run()(resume=True).history
    assert [{k: v for k, v in record.items() if k != "mean"} for record in history] == expected.history


def test_a_logger_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    class Logger:
        def __init__(self, path: Path) -> None:
            self.path = path
            self.lines: list[str] = []

        def log_metrics(self, metrics: Any, step: int) -> None:
            self.lines = [*self.lines, f"{step} {metrics}"]
            self.path.write_text("\n".join(self.lines))

        def state_dict(self) -> Any:
            return len(self.lines)

        def load_state_dict(self, state: Any) -> None:
            self.lines = self.path.read_text().split("\n")[:state]

    def options(name: str) -> Any:
        return {"loggers": [Logger(tmp_path / name)], "checkpoint": Checkpoint(tmp_path / f"{name}.d", every_steps=4)}

    Run(tmp_path, **options("whole"))()
    for kill_at in (7, 5):
        with pytest.raises(Killed):
            Run(tmp_path, **options("k"))(kill_at, resume=True)
    Run(tmp_path, **options("k"))(resume=True)
    assert (tmp_path / "k").read_text() == (tmp_path / "whole").read_text()


def test_hiddens_in_containers_that_only_pickle_could_load_are_refused(tmp_path: Path) -> None:
    def packed(model: Any, batch: Any, hiddens: Any) -> Any:
        packed = nn.utils.rnn.pack_sequence([batch[0]])
        return {"loss": model(batch[0]).mean(), "hiddens": packed}

    with pytest.raises(LoopError, match=r"got a `PackedSequence`") as caught:
        Run(tmp_path, step=packed, carry_hiddens=True)(max_steps=2)
    assert caught.value.code == "checkpoint_unsavable"


def test_no_checkpoint_is_written_before_its_losses_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    run = Run(tmp_path, max_epochs=1)
    read = noting(order, lambda optimization: "read", Optimization.read_waiting)
    monkeypatch.setattr(Optimization, "read_waiting", read)
    monkeypatch.setattr(saved_run, "write", noting(order, lambda path, state: "write", write))
    run(max_steps=2)
    assert order == ["read", "write", "read", "write", "read", "write", "read"]


def test_a_checkpoint_of_other_parameter_groups_is_refused_before_anything_moves(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    options: Any = {"max_epochs": 1, "progress_bar": False, "checkpoint": tmp_path}
    fit(model, step_of_linear, [torch.ones(2, 3)], optimizer=SGD(model.parameters(), lr=0.1), **options)
    other = nn.Linear(3, 1)
    before = copy.deepcopy(other.state_dict())
    groups: Any = [{"params": [other.weight]}, {"params": [other.bias]}]
    optimizer = SGD(groups, lr=0.1)
    with pytest.raises(LoopError, match=r"`parameter groups` was \[\[2\]\], is \[\[1, 1\]\]") as caught:
        fit(other, step_of_linear, [torch.ones(2, 3)], optimizer=optimizer, resume=True, **options)
    assert caught.value.code == "checkpoint_differs"
    require_same(other.state_dict(), before)


def test_a_run_that_was_logged_is_not_resumed_without_its_logger(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    options: Any = {"max_epochs": 1, "progress_bar": False, "checkpoint": tmp_path}
    optimizer = SGD(model.parameters(), lr=0.1)
    logger = JSONLLogger(tmp_path / "run.jsonl")
    fit(model, step_of_linear, [torch.ones(2, 3)], optimizer=optimizer, loggers=[logger], **options)
    with pytest.raises(LoopError, match="`loggers that go on with their file` was 1, is 0") as caught:
        fit(model, step_of_linear, [torch.ones(2, 3)], optimizer=optimizer, resume=True, **options)
    assert caught.value.code == "checkpoint_differs"


def step_of_linear(model: Any, batch: Any) -> Any:
    return model(batch).pow(2).mean()


def test_a_model_of_lazy_modules_is_resumed(tmp_path: Path) -> None:
    def run(epochs: int, width: int = 3) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.LazyLinear(width), nn.Linear(width, 1))
        options: dict[str, Any] = {"checkpoint": tmp_path, "resume": True, "progress_bar": False}
        optimizer = SGD(model.parameters(), lr=0.1)
        step = lambda model, batch: model(batch).pow(2).mean()  # noqa: E731
        return fit(model, step, [torch.ones(8, 4)], optimizer=optimizer, max_epochs=epochs, **options).history

    assert len(run(1)) == 1
    assert len(run(2)) == 2
    with pytest.raises(LoopError, match=r"`model` differs in `1\.weight \[1, 3\] -> \[1, 5\]`  ") as caught:
        run(3, width=5)
    assert caught.value.code == "checkpoint_differs"


def test_a_checkpoint_is_refused_where_it_would_not_hold_all_that_is_trained(tmp_path: Path) -> None:
    model, scale = nn.Linear(4, 1), nn.Parameter(torch.ones(1))
    optimizer = SGD([*model.parameters(), scale], lr=0.1)
    step = lambda model, batch: (scale * model(batch)).pow(2).mean()  # noqa: E731
    options: dict[str, Any] = {"optimizer": optimizer, "max_epochs": 1, "progress_bar": False}
    with pytest.raises(
        LoopError, match=r"expected `SGD` to train parameters of the model alone, .* got 1 of elsewhere"
    ):
        fit(model, step, [torch.ones(8, 4)], checkpoint=tmp_path, **options)
    assert fit(model, step, [torch.ones(8, 4)], **options).global_step == 1


def test_a_checkpoint_folder_that_is_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LoopError, match="expected a folder as `checkpoint`, got the file"):
        Run(tmp_path)(checkpoint=tmp_path / "file")
    with pytest.raises(LoopError, match="expected a folder as `checkpoint`, got one within the file"):
        Run(tmp_path)(checkpoint=tmp_path / "file" / "run" / "1")


def test_a_state_without_its_parts_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimization = AutomaticOptimization(model, lambda model, batch: model(batch).sum(), SGD(model.parameters()))
    with pytest.raises(LoopError, match="got one without `batches_seen`, `scaler`, `weight_by_examples`") as caught:
        optimization.load_state_dict({"global_step": 3})
    assert (caught.value.code, optimization.global_step) == ("checkpoint_differs", 0)
