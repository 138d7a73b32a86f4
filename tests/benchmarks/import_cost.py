"""What `import strictstep.schema` costs on top of torch, pydantic and an empty model, in ms of processor time.

    python tests/benchmarks/import_cost.py

Fresh interpreters, interleaved with ones that do nothing more; the minimum of each is compared.
"""

import subprocess
import sys

ROUNDS = 10
BASE = "import time, torch, pydantic\nclass M(pydantic.BaseModel): pass\nstart = time.process_time()\n{}\n"
BASE += "print(time.process_time() - start)"


def seconds(statement: str) -> float:
    """Seconds that a statement takes in a fresh interpreter."""
    run = subprocess.run([sys.executable, "-c", BASE.format(statement)], capture_output=True, text=True, check=True)
    return float(run.stdout)


def main() -> None:
    """Print the difference."""
    pairs = [(seconds("import strictstep.schema"), seconds("pass")) for _ in range(ROUNDS)]
    ours, nothing = (min(column) for column in zip(*pairs, strict=True))
    print(f"import strictstep.schema: {(ours - nothing) * 1000:.1f} ms over torch, pydantic and one empty model")


if __name__ == "__main__":
    main()
