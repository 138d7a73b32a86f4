"""The pytest plugin: the fixture `assert_step`.

pytest imports this module in every run, also in those that never train. It is a module of its own, outside the
namespace, because importing anything of `strictstep.schema` imports torch (about a second and 200 MB); here that
happens in the first test that asks for the fixture.
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def assert_step() -> Callable[..., Any]:
    """`strictstep.schema.testing.assert_step`: run a step once, and hold it to its contract."""
    from strictstep.schema.testing import assert_step

    return assert_step
