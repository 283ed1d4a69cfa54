#!/usr/bin/env python3
"""Runs programs in alternation, and prints the median of each figure over the rounds, side by side.

    benches/peers/alternate.py [--rounds 5] [--json FILE] COMMAND COMMAND ...

Each command is one argument, and prints one JSON object a row, as the benches do with --json. Rows are the same where everything but their figures is.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys

FIGURES = (
    "host_us_median", "latency_us_median", "back_to_back_us", "over_frozen_latency", "over_frozen_back_to_back", "capture_ms", "ms_median", "us",
)


def rows(command):
    done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}: exit {done.returncode}")
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def identity(row):
    """What a row is of: the bench, the program's size, and the arm."""
    if "break_kernels" in row:
        program = "{segments}x{kernels}+{break_kernels}".format(**row)
    else:
        program = " ".join(str(row[key]) for key in ("size", "rows") if key in row)
    return row["bench"], program, row.get("arm") or row.get("breaks") or row.get("single") or ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="also write one JSON object a row to this file, for the bench `chart`")
    parser.add_argument("commands", nargs="+")
    arguments = parser.parse_args()
    found = {}
    for _ in range(arguments.rounds):
        for number, command in enumerate(arguments.commands):
            for row in rows(command):
                figures = found.setdefault((number, *identity(row)), {})
                for key in FIGURES:
                    if isinstance(row.get(key), (int, float)):
                        figures.setdefault(key, []).append(row[key])
    medians = {key: {of: statistics.median(values) for of, values in figures.items()} for key, figures in found.items()}
    if arguments.json:
        with open(arguments.json, "w") as file:
            for (number, bench, program, arm), figures in medians.items():
                file.write(json.dumps({"command": number, "bench": bench, "program": program, "arm": arm, **figures}) + "\n")
    for number, command in enumerate(arguments.commands):
        print(f"{number}: {command}")
    for (number, bench, program, arm), figures in medians.items():
        print(f"{number} {bench} {program:<14} {arm:<34}", "  ".join(f"{of} {median:.{4 if of.startswith('over') else 2}f}" for of, median in figures.items()))


if __name__ == "__main__":
    main()
