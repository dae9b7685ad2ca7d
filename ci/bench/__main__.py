"""The command line: python -m ci.bench."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the record, print the table; returns 1 if there is nothing to measure."""
    parser = argparse.ArgumentParser(prog="python -m ci.bench", description="Measure csa_utils beside other libraries.")
    parser.add_argument("--threads", type=int, default=1, help="threads of each side (1 if left out)")
    parser.add_argument("--rounds", type=int, default=7, help="fewest rounds of a row")
    parser.add_argument("--seconds", type=float, default=2.0, help="shortest time of a row")
    parser.add_argument("--patience", type=float, default=60.0, help="after this time three rounds are enough")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this row or series; no file")
    parser.add_argument("--output", type=Path, help="another file than book/evidence/performance.json")
    given = parser.parse_args(arguments)
    cores = os.cpu_count() or 1
    if not 1 <= given.threads <= cores:
        parser.error(f"--threads must be between 1 and {cores}, got {given.threads}")
    _limit(given.threads)

    # only now, since numpy reads the number of threads when it starts
    from ci.bench import record, table
    from ci.bench.measure import Rule
    from ci.bench.rows import ROWS, SERIES
    from ci.bench.run import measure

    known = [one.id for one in (*ROWS, *SERIES)]
    unknown = sorted(set(given.only) - set(known))
    if unknown:
        parser.error(f"--only must be one of {', '.join(known)}, got {', '.join(unknown)}")
    rows, series = (
        [one for one in all_of_them if not given.only or one.id in given.only] for all_of_them in (ROWS, SERIES)
    )
    fewest = min(3, given.rounds)
    rule = Rule(given.rounds, given.seconds, most=max(51, given.rounds), patience=given.patience, fewest=fewest)
    try:
        data = measure(rows, series, rule, given.threads, lambda line: print(line, file=sys.stderr, flush=True))
        print(table.plain(data))
        target = given.output or (None if given.only else record.PATH)
        if target is not None:
            record.write(data, target)
            print(f"Written: {target.name}")
    except KeyboardInterrupt:
        print("Interrupted: the old measurements stay.", file=sys.stderr)
        return 130
    return 0


def _limit(threads: int) -> None:
    """Give every library of this process the same cores."""
    for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB"):
        suffix = "MAXIMUM_THREADS" if name == "VECLIB" else "NUM_THREADS"
        os.environ[f"{name}_{suffix}"] = str(threads)
    if hasattr(os, "sched_setaffinity"):  # Linux: also for those that only count cores, such as XLA
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


if __name__ == "__main__":
    sys.exit(main())
