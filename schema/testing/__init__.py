"""For the tests of those who write steps: a step held to its contract, and returns that a step may and may not give.

    from strictstep.schema.testing import assert_step, invalid_returns, valid_returns

Needs the extra `testing`: `pip install 'strictstep[testing]'`. With it, pytest knows the fixture `assert_step` too.
"""

from strictstep.schema.testing.assertions import assert_step
from strictstep.schema.testing.invalid import invalid_returns
from strictstep.schema.testing.valid import valid_returns

__all__ = ["assert_step", "invalid_returns", "valid_returns"]
