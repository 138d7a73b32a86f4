"""Rules 10 and 12: what goes wrong around the step says what and where it is, and nothing is kept."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from strictstep.loop import LoopError, fit


def mse(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).pow(2).mean()


def train(model: Any, step: Any, batches: Any, **options: Any) -> Any:
    optimizer = SGD(model.parameters(), lr=0.1)
    return fit(model, step, batches, **{"optimizer": optimizer, "max_epochs": 1, "progress_bar": False, **options})


def stops(*args: Any) -> Any:
    """A function in which a `next` ran out."""
    return next(iter([]))


class Raising:
    def log_metrics(self, metrics: Any, step: int) -> None:
        raise OSError("disk full")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"after_step": stops}, "after_step function `stops`"),
        ({"epoch_end": stops}, "epoch_end function `stops`"),
        ({"weight": stops}, "weight function `stops`"),
    ],
)
def test_a_stop_iteration_of_a_function_is_an_error_that_names_it(
    model: Any, make_batch: Any, options: Any, what: str
) -> None:
    with pytest.raises(LoopError, match=r"to return, got a StopIteration from it") as caught:
        train(model, mse, [make_batch()], **options)
    assert caught.value.message == f"expected {what} to return, got a StopIteration from it"


def test_a_stop_iteration_of_the_step_ends_no_epoch(model: Any, make_batch: Any) -> None:
    def training_step(model: Any, batch: Any) -> Any:
        return stops()

    with pytest.raises(LoopError, match=r"expected step `training_step` to return, got a StopIteration") as caught:
        train(model, training_step, [make_batch()])
    assert caught.value.__notes__ == ["in training step `training_step`, epoch 0, batch 0"]


def test_an_exception_of_the_step_keeps_its_type_and_says_where_it_was(model: Any, make_batch: Any) -> None:
    def training_step(model: Any, batch: Any, epoch: int, batch_idx: int) -> Any:
        return mse(model, batch) if epoch == 0 or batch_idx < 2 else {"x": 0}["label"]

    with pytest.raises(KeyError, match=r"^'label'\nin training step `training_step`, epoch 1, batch 2$"):
        train(model, training_step, [make_batch()] * 4, max_epochs=3)


def test_an_exception_of_after_step_says_where_it_was(model: Any, make_batch: Any) -> None:
    def after_step(report: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError, match=r"in after_step function `after_step`, epoch 0, batch 0"):
        train(model, mse, [make_batch()], after_step=after_step)


def test_an_exception_of_a_logger_says_at_which_step(model: Any, make_batch: Any) -> None:
    with pytest.raises(OSError, match=r"^disk full\nin logger `log_metrics`, step 1$"):
        train(model, mse, [make_batch()], loggers=[Raising()])


def test_a_loader_that_raises_midway_says_where_it_was(model: Any, make_batch: Any) -> None:
    def batches() -> Any:
        yield make_batch()
        raise OSError("disk gone")

    with pytest.raises(OSError, match=r"^disk gone\nin `train_batches`, epoch 0, batch 1$"):
        train(model, mse, batches())


class Empty:
    def __iter__(self) -> Any:
        return iter([])


def test_a_loader_that_turns_out_empty_is_an_error(model: Any) -> None:
    with pytest.raises(LoopError, match=r"expected at least one batch from `train_batches` in epoch 0") as caught:
        train(model, mse, Empty())
    assert caught.value.code == "loader_empty"


def test_an_iterator_that_is_used_up_is_named(model: Any, make_batch: Any) -> None:
    with pytest.raises(LoopError, match=r"got a used-up list_iterator") as caught:
        train(model, mse, iter([make_batch()]), max_epochs=5, max_steps=100)
    assert caught.value.code == "loader_used_up"


class StopsInside(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return stops() if index == 6 else torch.ones(3, dtype=torch.float64)


def test_a_stop_iteration_of_a_dataset_ends_no_epoch(model: Any) -> None:
    with pytest.raises(LoopError, match=r"expected 5 batches from `train_batches`, got an end after 3") as caught:
        train(model, lambda model, batch: model(batch).sum(), DataLoader(StopsInside(), 2))
    assert caught.value.code == "loader_ended_early"


def test_batches_of_strings_and_of_nothing_train(model: Any) -> None:
    def training_step(model: Any, batch: Any) -> Any:
        return model.weight.sum() * len(batch)

    assert train(model, training_step, ["ab", "", "c"], weight=1).global_step == 3


def test_the_window_before_is_gone_when_the_next_is_fetched(model: Any, make_batch: Any) -> None:
    alive: list[int] = []

    def batches() -> Any:
        given: list[Any] = []
        for seed in range(6):
            alive.append(sum(ref() is not None for ref in given))
            x, y = make_batch(4, seed)
            given.append(weakref.ref(x))
            yield x, y
            del x, y

    train(model, mse, batches(), gradient_accumulation_steps=2)
    assert alive == [0, 1, 0, 1, 0, 1]


def test_the_output_before_is_gone_when_the_next_step_runs(model: Any, make_batch: Any) -> None:
    alive: list[int] = []
    given: list[Any] = []

    def training_step(model: Any, batch: Any) -> Any:
        alive.append(sum(ref() is not None for ref in given))
        loss = mse(model, batch)
        logged = loss.detach().clone()
        given.extend([weakref.ref(loss), weakref.ref(logged)])
        return {"loss": loss, "log": {"a": logged}, "hiddens": logged + 1, "metrics": {"b": logged + 2}}

    train(model, training_step, [make_batch()] * 5, max_epochs=2)
    assert alive == [0] * 10


def test_live_tensors_are_those_of_a_bare_loop(model: Any, make_batch: Any) -> None:
    def live() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    batches = [make_batch()] * 3
    optimizer = SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        mse(model, batch).backward()
        optimizer.step()
    optimizer.zero_grad()
    bare = live()
    train(model, mse, batches)
    assert live() == bare


class Counting(TorchDispatchMode):
    """Counts the reads of a tensor's value."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def logging_step(model: Any, batch: Any) -> Any:
    loss = mse(model, batch)
    return {"loss": loss, "log": {"a": loss * 2, "b": loss * 3, "n": 8}}


def test_on_the_cpu_a_step_reads_its_loss_twice_and_each_logged_tensor_once(model: Any, make_batch: Any) -> None:
    with Counting() as counting:
        train(model, logging_step, [make_batch()] * 20)
    # the loss for the finite check and for its mean, and `a` and `b`
    assert counting.reads == 20 * (1 + 1 + 2)


def counting_lists(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the tensors that are read as lists from now on."""
    sizes: list[int] = []
    tolist = Tensor.tolist

    def counted(self: Tensor) -> Any:
        sizes.append(self.numel())
        return tolist(self)

    monkeypatch.setattr(Tensor, "tolist", counted)
    return sizes


def test_between_refreshes_no_value_of_a_device_is_read(
    model: Any, make_batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU stands for a device: no tensor says that it is one of the CPU."""
    monkeypatch.setattr(Tensor, "is_cpu", property(lambda self: False), raising=False)
    reads: list[int] = []
    lists = counting_lists(monkeypatch)
    with Counting() as counting:
        train(
            model, logging_step, [make_batch()] * 20, log_every=10, progress_bar=True,
            after_step=lambda report: reads.append(counting.reads + len(lists)),
        )  # fmt: skip
    assert reads[:9] == [0] * 9
    assert reads[10:19] == [1] * 9
    # ten steps of three tensors each, twice; the twenty losses of the finite check, at the end of the epoch
    assert sorted(lists) == [20, 30, 30]
