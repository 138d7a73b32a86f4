"""The values of an epoch from those of its micro-batches: each name reduced as its schema declares.

Sums are kept on the host in Python's numbers: float64, and ints exact however large; a mean is divided once.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from strictstep.loop.errors import LoopError
from strictstep.schema.describe import names_text
from strictstep.schema.fields import ReduceOp


class Mean:
    """The mean, weighted: each micro-batch counts by its examples, or as `weight=` says."""

    __slots__ = ("number", "weight")
    op: ClassVar[ReduceOp] = "mean"

    def __init__(self, number: Any, weight: float) -> None:
        """Start with the first number."""
        self.number = number * weight
        self.weight = weight

    def add(self, number: Any, weight: float) -> None:
        """Take in one number."""
        self.number += number * weight
        self.weight += weight

    def value(self) -> Any:
        """The mean so far."""
        return self.number / self.weight


class _Unweighted(Mean):
    __slots__ = ()

    def __init__(self, number: Any, weight: float) -> None:
        self.number = +number  # a bool counts as 0 or 1
        self.weight = weight

    def value(self) -> Any:
        return self.number


class Sum(_Unweighted):
    """The sum."""

    __slots__ = ()
    op: ClassVar[ReduceOp] = "sum"

    def add(self, number: Any, weight: float) -> None:
        """Take in one number."""
        self.number += number


class Min(_Unweighted):
    """The smallest; NaN once there was one, which Python's own `min` would hide by chance."""

    __slots__ = ()
    op: ClassVar[ReduceOp] = "min"

    def add(self, number: Any, weight: float) -> None:
        """Take in one number."""
        if number < self.number or number != number:
            self.number = +number


class Max(_Unweighted):
    """The largest; NaN once there was one."""

    __slots__ = ()
    op: ClassVar[ReduceOp] = "max"

    def add(self, number: Any, weight: float) -> None:
        """Take in one number."""
        if number > self.number or number != number:
            self.number = +number


class Last(_Unweighted):
    """The last."""

    __slots__ = ()
    op: ClassVar[ReduceOp] = "last"

    def add(self, number: Any, weight: float) -> None:
        """Take in one number."""
        self.number = +number


_KINDS: dict[ReduceOp, type[Mean]] = {kind.op: kind for kind in (Mean, Sum, Min, Max, Last)}


class Aggregate:
    """Named numbers of many micro-batches, reduced as they come; none is kept.

    Example:
        >>> aggregate = Aggregate()
        >>> aggregate.add({"loss": 0.5, "images": 30}, 30, {"images": "sum"})
        >>> aggregate.add({"loss": 2.0, "images": 10}, 10, {"images": "sum"})
        >>> aggregate.values()
        {'loss': 0.875, 'images': 40}
    """

    __slots__ = ("_running",)

    def __init__(self) -> None:
        """Start empty."""
        self._running: dict[str, Mean] = {}

    def add(self, numbers: Mapping[str, Any], weight: float, ops: Mapping[str, ReduceOp]) -> None:
        """Take in the numbers of one micro-batch.

        Args:
            numbers: names to numbers of the host.
            weight: how much the micro-batch counts in means.
            ops: how names are reduced when they come first; those not in it by the mean.

        Raises:
            LoopError: with the code `value_too_large`, for an int that no float can hold.
        """
        running = self._running
        name = ""
        try:
            for name, number in numbers.items():
                if name in running:
                    running[name].add(number, weight)
                else:
                    running[name] = _KINDS[ops.get(name, "mean")](number, weight)
        except OverflowError as error:
            raise _too_large(name) from error

    def values(self) -> dict[str, Any]:
        """The values so far, by name, in the order in which the names came first.

        Raises:
            LoopError: with the code `value_too_large`, for a mean that no float can hold.
        """
        values: dict[str, Any] = {}
        for name, running in self._running.items():
            try:
                values[name] = running.value()
            except OverflowError as error:
                raise _too_large(name) from error
        return values

    def state_dict(self) -> dict[str, Any]:
        """The running sums, exactly."""
        return {name: (running.op, running.number, running.weight) for name, running in self._running.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the sums of a checkpoint."""
        self._running = {}
        for name, (op, number, weight) in state.items():
            running = self._running[name] = _KINDS[op](number, weight)
            running.number = number


def _too_large(name: str) -> LoopError:
    message = f"expected numbers below 1.8e308 for the mean of {names_text([name])}, got an int beyond"
    return LoopError("value_too_large", message, "log its logarithm, or declare it a sum: those of ints stay exact")
