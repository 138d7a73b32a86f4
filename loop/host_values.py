"""Values as numbers of the host: each device is read once, however many values are on it."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from strictstep.schema.scalars import host_number

Key = TypeVar("Key")


def host_values(values: Mapping[Key, Any]) -> dict[Key, Any]:
    """The values by name, in their order, each tensor of one element as the Python number it holds.

    Tensors of an accelerator are read in one transfer for each device and dtype. Ints stay exact. What is no number
    is left as it is, for its reader to refuse.

    Example:
        >>> host_values({"loss": torch.tensor(0.5), "images": torch.tensor(8), "lr": 0.1})
        {'loss': 0.5, 'images': 8, 'lr': 0.1}
    """
    read = {name: _number(value) for name, value in values.items()}
    waiting: dict[Any, list[Key]] = defaultdict(list)
    for name, value in read.items():
        if isinstance(value, Tensor):
            waiting[value.device, value.dtype].append(name)
    for names in waiting.values():
        stacked = torch.stack([values[name].detach().view(()) for name in names])
        read.update(zip(names, stacked.tolist(), strict=True))
    return read


def _number(value: Any) -> Any:
    """The number, if it is on the host; a tensor of an accelerator waits for the others."""
    if isinstance(value, Tensor):
        return value.item() if value.is_cpu else value
    number = host_number(value)
    return value if number is None else number
