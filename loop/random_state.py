"""The random generators that training draws from: Python's, numpy's, torch's on each device, and those of the data."""

import random
import sys
from collections.abc import Iterable
from typing import Any

import torch


def random_state(generators: Iterable[Any] = ()) -> dict[str, Any]:
    """The state of every generator, in tensors and plain numbers, which `weights_only` loads.

    Args:
        generators: those of loaders, samplers and datasets (as `is_generator` tells), besides the global ones.

    Example:
        >>> state = random_state()
        >>> first = torch.rand(1), random.random()
        >>> set_random_state(state)
        >>> (torch.rand(1), random.random()) == first
        True
    """
    numpy = sys.modules.get("numpy")
    return {
        "python": random.getstate(),
        "numpy": None if numpy is None else _listed(numpy.random.get_state(legacy=False)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "generators": [_state_of(generator) for generator in generators],
    }


def set_random_state(state: dict[str, Any], generators: Iterable[Any] = ()) -> None:
    """Bring every generator back to a state; those of `generators` in the same order."""
    random.setstate(state["python"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and state["numpy"] is not None:
        numpy.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
    for generator, own in zip(generators, state["generators"], strict=False):
        _set_state_of(generator, own)


def is_generator(value: Any) -> bool:
    """Whether a value is a random generator of torch, of numpy or of Python.

    Example:
        >>> is_generator(torch.Generator()), is_generator(random.Random(0)), is_generator(random)
        (True, True, False)
    """
    return isinstance(value, (torch.Generator, random.Random, *_of_numpy()))


def _of_numpy() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    bits = getattr(generator, "bit_generator", None)
    return _listed(generator.get_state(legacy=False) if bits is None else bits.state)


def _set_state_of(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif (bits := getattr(generator, "bit_generator", None)) is not None:
        bits.state = state
    else:
        generator.set_state(state)


def _listed(state: Any) -> Any:
    """A state of numpy's with lists in place of its arrays."""
    if isinstance(state, dict):
        return {name: _listed(part) for name, part in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch.

    Example:
        >>> seed_all(0)
        >>> torch.rand(1)
        tensor([0.4963])
    """
    random.seed(seed)
    torch.manual_seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
