"""Rule 15: runs that go on from a checkpoint, with loaders and generators of every kind, and those that may not."""

import random
import signal
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, Sampler, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from strictstep.loop import Checkpoint, EarlyStopping, LoopError, fit

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata, of torch

DATA: Any = torch.arange(12.0).view(12, 1) / 12


def step(model: Any, batch: Any) -> Any:
    return (model(batch) - 1).pow(2).mean()


def run(folder: Path | None, batches: Any, **options: Any) -> Any:
    """The result of a run from its start, or from its checkpoint, and the weight that it ends with."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    given: dict[str, Any] = {"optimizer": Adam(model.parameters(), lr=0.05), "max_epochs": 3, "seed": 1, "step": step}
    given |= {"checkpoint": folder, "progress_bar": False, **options}
    result = fit(model, given.pop("step"), batches, **given)
    return result, model.weight.item()


def pressed_once(left: list[int]) -> Any:
    def validation_step(model: Any, batch: Any) -> Any:
        if left:
            left.pop()
            signal.raise_signal(signal.SIGINT)
        return step(model, batch)

    return validation_step


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_a_run_interrupted_in_validation_trains_no_batch_again(tmp_path: Path, kind: Any) -> None:
    def made(folder: Path | None, left: list[int], **options: Any) -> Any:
        torch.manual_seed(5)  # of which torchdata's draws when it is made
        loader = kind(DATA, batch_size=2, shuffle=True)
        return run(folder, loader, validation_step=pressed_once(left), validation_batches=[DATA], **options)

    expected = made(None, [])
    assert made(tmp_path, [1])[0].stopped == "interrupted"
    assert made(tmp_path, [], resume=True) == expected


def drawn_sum(model: Any, batch: Any, hiddens: Any) -> Any:
    return {"loss": step(model, batch.unsqueeze(-1)) + (0 if hiddens is None else hiddens), "hiddens": batch.sum() / 99}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 8])
def test_a_stateful_loader_goes_on_within_a_sequence(tmp_path: Path, at: int, shuffle: bool) -> None:
    def made(folder: Path | None, **options: Any) -> Any:
        torch.manual_seed(5)
        loader = StatefulDataLoader(DATA.view(4, 3).repeat(1, 2), batch_size=2, shuffle=shuffle)
        return run(folder, loader, step=drawn_sum, tbptt=(3, 1), **options)

    expected = made(None)
    assert made(tmp_path, max_steps=at)[0].global_step == at
    assert made(tmp_path, resume=True) == expected


class OwnOrder(Sampler[int]):
    def __init__(self) -> None:
        self.drawn_by = torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return 16

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(16, generator=self.drawn_by).tolist()


class Noisy(Dataset[Any]):
    """Adds noise of one generator, whatever the attribute is called."""

    def __init__(self, generator: Any, draw: Any) -> None:
        self.noise = generator
        self.draw = draw

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index + float(self.draw(self.noise))])


GENERATORS: dict[str, Any] = {
    "torch": lambda: (torch.Generator().manual_seed(1), lambda g: torch.rand((), generator=g)),
    "python": lambda: (random.Random(1), lambda g: g.gauss(0, 1)),
    "RandomState": lambda: (np.random.RandomState(1), lambda g: g.randn()),
    "PCG64": lambda: (np.random.default_rng(1), lambda g: g.normal()),
    "MT19937": lambda: (np.random.Generator(np.random.MT19937(1)), lambda g: g.random()),
    "Philox": lambda: (np.random.Generator(np.random.Philox(1)), lambda g: g.random()),
    "SFC64": lambda: (np.random.Generator(np.random.SFC64(1)), lambda g: g.random()),
}


@pytest.mark.parametrize("kind", list(GENERATORS))
@pytest.mark.parametrize("at", [3, 8, 13])
def test_generators_of_samplers_and_datasets_go_on_wherever_they_are(tmp_path: Path, kind: str, at: int) -> None:
    def made(folder: Path | None, **options: Any) -> Any:
        data: Any = ConcatDataset([Subset(Noisy(*GENERATORS[kind]()), range(8)), Noisy(*GENERATORS[kind]())])
        loader = DataLoader(data, batch_sampler=BatchSampler(OwnOrder(), 2, False))
        return run(folder, loader, **options)

    expected = made(None)
    made(tmp_path, max_steps=at)
    assert made(tmp_path, resume=True) == expected


def cosine(epoch: int) -> Any:
    return 0.5 * (1 + np.cos(np.pi * epoch / 10))  # an `np.float64`


def test_rates_that_numpy_computes_are_saved_as_pythons(tmp_path: Path) -> None:
    def made(folder: Path | None, **options: Any) -> Any:
        optimizer = SGD((model := nn.Linear(1, 1)).parameters(), lr=np.float64(0.1))
        nn.init.constant_(model.weight, 0.5)
        nn.init.zeros_(model.bias)
        given: dict[str, Any] = {"optimizer": optimizer, "scheduler": LambdaLR(optimizer, cosine), "max_epochs": 3}
        return fit(model, step, [DATA], checkpoint=folder, progress_bar=False, **{**given, **options})

    expected = made(None)
    made(tmp_path, max_epochs=2)
    assert made(tmp_path, resume=True) == expected


def test_a_state_that_cannot_be_loaded_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    run(tmp_path, [DATA], max_epochs=1)
    before = (tmp_path / "last.pt").read_bytes()
    model = nn.Linear(1, 1)
    optimizer = Adam(model.parameters(), lr=0.05)

    def spoiled(report: Any) -> None:
        optimizer.param_groups[0]["note"] = np.float32(0.5)

    with pytest.raises(LoopError, match=r"got one that only pickle could load") as caught:
        fit(
            model, step, [DATA], optimizer=optimizer, max_epochs=2, after_step=spoiled, checkpoint=tmp_path,
            resume=True, progress_bar=False,
        )  # fmt: skip
    assert caught.value.code == "checkpoint_unsavable"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"last.pt": before}


def test_another_value_that_is_watched_begins_without_a_best(tmp_path: Path) -> None:
    def step_of(accuracy: float) -> Any:
        return lambda model, batch: {"loss": step(model, batch), "log": {"accuracy": accuracy}}

    by_loss = {"checkpoint": Checkpoint(tmp_path, monitor="loss"), "early_stopping": EarlyStopping("loss", patience=1)}
    run(None, [DATA], step=step_of(0.0), max_epochs=2, **by_loss)
    by_accuracy: dict[str, Any] = {
        "checkpoint": Checkpoint(tmp_path, monitor="accuracy", mode="max"),
        "early_stopping": EarlyStopping("accuracy", mode="max", patience=1),
    }
    result, _ = run(None, [DATA], step=step_of(1e-6), resume=True, **by_accuracy)
    assert (len(result.history), result.stopped) == (3, "max_epochs")
    assert torch.load(tmp_path / "best.pt", weights_only=True)["best"] == pytest.approx(1e-6)


def test_a_scheduler_that_would_watch_another_value_is_not_resumed(tmp_path: Path) -> None:
    def made(monitor: str, **options: Any) -> Any:
        optimizer = SGD((model := nn.Linear(1, 1)).parameters(), lr=0.1)
        watching: dict[str, Any] = {"scheduler": ReduceLROnPlateau(optimizer), "scheduler_monitor": monitor}
        logged = lambda model, batch: {"loss": step(model, batch), "log": {"mean": batch.mean()}}  # noqa: E731
        return fit(
            model, logged, [DATA], optimizer=optimizer, max_epochs=2, checkpoint=tmp_path, progress_bar=False,
            **watching, **options,
        )  # fmt: skip

    made("loss")
    with pytest.raises(LoopError, match="`scheduler_monitor` was 'loss', is 'mean'") as caught:
        made("mean", resume=True)
    assert caught.value.code == "checkpoint_differs"


def manual_step(model: Any, batch: Any, optimizers: Any) -> Any:
    for name, optimizer in optimizers.items():
        optimizer.zero_grad()
        step(model[name], batch).backward()
        optimizer.step()


def test_optimizers_in_another_order_are_not_resumed(tmp_path: Path) -> None:
    def made(names: str, **options: Any) -> Any:
        model = nn.ModuleDict({"g": nn.Linear(1, 1), "d": nn.Linear(1, 1)})
        optimizers = {name: Adam(model[name].parameters()) for name in names}
        return fit(
            model, manual_step, [DATA], optimizer=optimizers, max_epochs=2, checkpoint=tmp_path, progress_bar=False,
            **options,
        )  # fmt: skip

    made("gd")
    with pytest.raises(
        LoopError, match=r"`optimizer` was \['g: Adam', 'd: Adam'\], is \['d: Adam', 'g: Adam'\]"
    ) as caught:
        made("dg", resume=True)
    assert caught.value.code == "checkpoint_differs"


def test_parameters_in_another_order_are_not_resumed(tmp_path: Path) -> None:
    def made(order: int, **options: Any) -> Any:
        model = nn.Linear(1, 1)
        optimizer = Adam([*model.parameters()][::order])
        return fit(
            model, step, [DATA], optimizer=optimizer, max_epochs=2, checkpoint=tmp_path, progress_bar=False, **options
        )

    made(1)
    with pytest.raises(
        LoopError, match=r"`places of parameters` differs in `weight \[0, 0, 0\] -> \[0, 0, 1\]`"
    ) as caught:
        made(-1, resume=True)
    assert caught.value.code == "checkpoint_differs"


def test_a_stateful_loader_is_not_exchanged_for_another(tmp_path: Path) -> None:
    run(tmp_path, StatefulDataLoader(DATA, batch_size=2), max_steps=2)
    with pytest.raises(LoopError, match="`train_batches that keep their position` was True, is False") as caught:
        run(tmp_path, DataLoader(DATA, batch_size=2), resume=True)
    assert caught.value.code == "checkpoint_differs"


def test_a_checkpoint_that_lacks_a_part_is_unreadable(tmp_path: Path) -> None:
    run(tmp_path, [DATA], max_epochs=1)
    state = torch.load(tmp_path / "last.pt", weights_only=True)
    del state["optimizers"], state["epoch"]
    torch.save(state, tmp_path / "last.pt")
    with pytest.raises(LoopError, match="got one without `epoch`, `optimizers`") as caught:
        run(tmp_path, [DATA], resume=True)
    assert caught.value.code == "checkpoint_unreadable"


class WithoutState(DataLoader[Any]):
    """As Accelerate's: it has the methods of a stateful loader, and a state only where it was asked for."""

    use_stateful_dataloader = False

    def state_dict(self) -> Any:
        raise AttributeError("'DataLoader' object has no attribute 'dl_state_dict'")

    load_state_dict = state_dict


def test_a_loader_that_has_no_state_after_all_is_skipped_forward(tmp_path: Path) -> None:
    expected = run(None, WithoutState(DATA, batch_size=2, shuffle=True))
    run(tmp_path, WithoutState(DATA, batch_size=2, shuffle=True), max_steps=8)
    assert run(tmp_path, WithoutState(DATA, batch_size=2, shuffle=True), resume=True) == expected


def test_hiddens_that_end_with_their_sequence_need_no_plain_containers(tmp_path: Path) -> None:
    state = namedtuple("state", "h c")

    def recurrent(model: Any, batch: Any, hiddens: Any) -> Any:
        return {"loss": step(model, batch.unsqueeze(-1)), "hiddens": state(batch.sum(), None)}

    result, _ = run(tmp_path, [DATA.view(4, 3)], step=recurrent, tbptt=(2, 1))
    assert (result.stopped, (tmp_path / "last.pt").is_file()) == ("max_epochs", True)


def test_the_bar_of_an_epoch_that_is_resumed_counts_the_steps_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = list(DATA.split(3))
    run(tmp_path, batches, max_steps=3)
    run(tmp_path, batches, resume=True, max_epochs=1, progress_bar=True)
    assert "(4 steps in" in capsys.readouterr().err
