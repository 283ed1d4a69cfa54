#!/usr/bin/env python3
"""Runs programs in alternation, and prints the median of each figure over the rounds, side by side.

    benches/peers/alternate.py [--rounds 5] COMMAND COMMAND ...

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("commands", nargs="+")
    arguments = parser.parse_args()
    found = {}
    for _ in range(arguments.rounds):
        for number, command in enumerate(arguments.commands):
            for row in rows(command):
                names = [row[key] for key in ("bench", "size", "rows", "arm", "breaks", "single") if key in row]
                figures = found.setdefault((number, " ".join(str(name) for name in names)), {})
                for key in FIGURES:
                    if isinstance(row.get(key), (int, float)):
                        figures.setdefault(key, []).append(row[key])
    for number, command in enumerate(arguments.commands):
        print(f"{number}: {command}")
    for (number, name), figures in found.items():
        cells = (f"{key} {statistics.median(values):.2f}" for key, values in figures.items())
        print(f"{number} {name:<44}", "  ".join(cells))


if __name__ == "__main__":
    main()
