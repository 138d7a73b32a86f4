"""The command `strictstep`, as `python -m strictstep.schema`."""

import sys

from strictstep.schema.cli import main

if __name__ == "__main__":
    sys.exit(main())
