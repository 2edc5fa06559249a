#!/usr/bin/env python3
"""Checks with mlperf_logging's parser that every line of an mllog.txt parses and no metric is missing.

    check_mllog.py MLLOG REPORT_JSON

Needs the PyPI package `mlperf_logging`. Exit code 0: all answers are right; 1: one is not.
"""

import json
import sys

from mlperf_logging.compliance_checker.mlp_parser import parse_file

RULESET = "5.0.0"


def main() -> int:
    mllog, report = sys.argv[1], json.load(open(sys.argv[2]))
    lines, failed = parse_file(mllog, ruleset=RULESET)
    for line in failed:
        print(f"not read: {line}", file=sys.stderr)
    n_lines = sum(1 for _ in open(mllog))
    read = {line.key: line.value for line in lines}
    wrong = [f"{n_lines - len(lines)} lines are missing"] if n_lines != len(lines) else []
    for section in report["sections"]:
        for metric in section["metrics"]:
            name, value = metric["name"], metric["value"]
            if name not in read:
                wrong.append(f"{name} is not there")
            elif read[name]["value"] != value:
                wrong.append(f"{name} is {read[name]['value']}, not {value}")
    status = read.get("run_stop", {}).get("metadata", {}).get("status")
    if (status == "success") != report["verdict"]["accepted"]:
        wrong.append(f"the run ends with {status}")
    for why in wrong:
        print(why, file=sys.stderr)
    print(f"{len(lines)} lines read, {len(failed)} not, {len(wrong)} wrong")
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
