"""A hypothesis strategy for what a step may not return: one thing wrong at a time, each a mistake that people made."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from strictstep.schema.base import AnyOutput
from strictstep.schema.errors import Stage
from strictstep.schema.fields import names_and_annotations
from strictstep.schema.stages import model_of
from strictstep.schema.testing.drawn import attached_losses
from strictstep.schema.testing.valid import is_accepted, is_free, refuse_unknown, stage_of, valid_fields

Fields = dict[Any, Any]
Spoil = Callable[[Fields, Tensor], object]  # makes of valid fields, and a loss with a graph, what is wrong


def invalid_returns(
    schema: type[AnyOutput] | None = None, *, stage: Stage | None = None, **fields: SearchStrategy[Any]
) -> SearchStrategy[Any]:
    """Returns that the check refuses, each for one mistake: in the form, in the loss, in a field, against the schema.

    Args:
        schema: a model of your own; its listed names are left out, misspelt and given other values.
        stage: by default the one that `schema` is for, else `"training"`.
        **fields: strategies of your own for single fields, as for `valid_returns`.

    Raises:
        TypeError: if `schema` is no output model, or a field is none of the five.
        ValueError: if `stage` is unknown, or `schema` is of another stage.

    Example:
        >>> from hypothesis import given
        >>> @given(invalid_returns(stage="validation"))
        ... def test_every_one_is_refused(returned): ...
    """
    stage = stage_of(schema, stage)
    model = model_of(stage, schema)
    refuse_unknown(fields)
    against = [*_against(model)]  # as often as all others: they are what the schema is for
    spoils = [st.sampled_from(kinds) for kinds in ([*_FORMS, *_LOSSES[stage], *_FIELDS], against) if kinds]
    spoilt = st.builds(
        lambda drawn, loss, spoil: spoil(drawn, loss),
        valid_fields(model, stage, fields),
        attached_losses(),
        st.one_of(spoils),
    )
    # What a schema of one's own takes in another way may pass after all.
    return spoilt.filter(lambda returned: not is_accepted(returned, model, stage))


def _with(field: str, value: Any) -> Spoil:
    return lambda fields, loss: {**fields, field: value}


def _with_loss(change: Callable[[Tensor], Any]) -> Spoil:
    return lambda fields, loss: {**fields, "loss": change(loss)}


def _with_name(field: str, name: Any, value: Any) -> Spoil:
    return lambda fields, loss: {**fields, field: {**fields.get(field, {}), name: value}}


def _without_name(field: str, name: str) -> Spoil:
    return lambda fields, loss: {**fields, field: {key: fields[field][key] for key in fields[field] if key != name}}


def _without_loss(fields: Fields, loss: Tensor) -> object:
    return {name: value for name, value in fields.items() if name != "loss"}


def _cyclic(fields: Fields, loss: Tensor) -> object:
    endless: list[Any] = []
    endless.append(endless)
    return {**fields, "hiddens": endless}


_FORMS: tuple[Spoil, ...] = (
    lambda fields, loss: (loss, fields.get("log", {})),
    lambda fields, loss: [loss],
    lambda fields, loss: {loss},
    lambda fields, loss: (value for value in (loss,)),
    lambda fields, loss: "0.25",
    lambda fields, loss: math,
    lambda fields, loss: nn.Linear,
    lambda fields, loss: nn.Identity(),
    lambda fields, loss: lambda: loss,
    lambda fields, loss: loss.expand(2).flatten() if loss.dim() < 2 else loss.expand(2, 1),
    lambda fields, loss: {**fields, 0: loss},
    lambda fields, loss: {**fields, "logits": loss, "metrics": {"logits": loss}},
)

_NEVER: tuple[Spoil, ...] = (
    _with_loss(lambda loss: loss.new_zeros(0)),
    _with_loss(lambda loss: torch.stack([loss, loss])),
    _with_loss(lambda loss: loss.float().to(torch.complex64)),
    _with_loss(lambda loss: loss.detach().reshape(1).to_sparse()),
    _with_loss(lambda loss: [loss, loss]),
    _with_loss(lambda loss: {"cls": loss}),
    _with_loss(lambda loss: "0.25"),
)
_NOT_TRAINED: tuple[Spoil, ...] = (
    *_NEVER,
    _with_loss(lambda loss: loss.long()),
    _with_loss(lambda loss: loss.item()),
    _with_loss(lambda loss: 0),
    lambda fields, loss: loss.item(),
)
_LOSSES: dict[Stage, tuple[Spoil, ...]] = {
    "training": (
        *_NOT_TRAINED,
        _without_loss,
        _with_loss(lambda loss: None),
        _with_loss(lambda loss: loss.detach()),
        _with_loss(lambda loss: loss.detach().requires_grad_()),
    ),
    "manual": _NOT_TRAINED,
    "validation": _NEVER,
    "test": _NEVER,
}

_NO_NAMES: tuple[Any, ...] = (None, 0.5, "acc", {0: 0.5})
_FIELDS: tuple[Spoil, ...] = (
    *(_with(field, wrong) for field in ("log", "progress_bar") for wrong in _NO_NAMES),
    *(
        _with_name("log", "acc", wrong)
        for wrong in (None, "warm", [0.5], {"top1": 0.5}, 1j, torch.zeros(2), torch.zeros(0), torch.tensor(1j))
    ),
    _with("progress_bar", ["no such name"]),
    _with("hiddens", "cell"),
    _with("hiddens", (torch.zeros(2), "cell")),
    _with("hiddens", {"h": {torch.zeros(2)}}),
    _cyclic,
    *(_with("metrics", wrong) for wrong in (None, torch.zeros(2), ["acc"], {1: 2})),
)


def _against(model: type[AnyOutput]) -> Iterator[Spoil]:
    """What is wrong by a schema alone: listed names that are missing, unlisted ones, and values of another type."""
    for field in ("log", "progress_bar", "metrics"):
        annotation = model.model_fields[field].annotation
        names = () if is_free(model, field) else names_and_annotations(annotation)
        for name in names:
            yield _without_name(field, name)
            yield _with_name(field, name, {"another": "type"})
        if names:
            yield _with_name(field, "unlisted", 0.5)
