"""Run the benchmarks named on the command line, or all: python -m benchmarks [NAME…]."""

import sys

from .results import chosen, keep, place, run


def main() -> None:
    """Run, keep the results and print their tables."""
    try:
        names = chosen(sys.argv[1:])
    except ValueError as error:
        sys.exit(str(error))
    for name in names:
        module, result = run(name, lambda line: print(line, file=sys.stderr), f"python -m benchmarks {name}", place())
        print(f"{name}: {keep(name, result, place())}")
        for row in module.table(result):
            print("  ".join(row))


if __name__ == "__main__":  # child processes import this module too
    main()
