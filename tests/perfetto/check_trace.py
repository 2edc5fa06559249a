#!/usr/bin/env python3
"""Checks with Perfetto's own trace processor that a trace.json of zero3 loads and is complete.

    check_trace.py TRACE RANKS STEPS

Needs the PyPI package `perfetto`, which downloads the trace processor on first use; without network access,
PERFETTO_BINARY names one (`trace_processor_shell`), or PERFETTO_ADDRESS a running one (`host:port`). Exit
code 0: all answers are right; 1: one is not; 2: no trace processor.
"""

import json
import os
import sys


def main() -> int:
    path, n_ranks, n_steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    try:
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

        processor = TraceProcessor(
            trace=path,
            addr=os.environ.get("PERFETTO_ADDRESS"),
            config=TraceProcessorConfig(bin_path=os.environ.get("PERFETTO_BINARY")),
        )
    except Exception as why:  # no package, no download, no program: all the same to us
        print(f"no trace processor: {why}", file=sys.stderr)
        return 2

    def ask(sql):
        return list(processor.query(sql))

    wrong = []

    def expect(what, got, want):
        print(f"{'ok   ' if got == want else 'WRONG'} {what}: {got}")
        if got != want:
            wrong.append(f"{what}: {got}, not {want}")

    processes = ask("select pid, name from process where name like 'rank %' order by pid")
    expect("processes", [row.pid for row in processes], list(range(n_ranks)))
    errors = ask("select count(*) as n from stats where severity = 'error' and value > 0")
    expect("kinds of import errors", errors[0].n, 0)

    # A rank's compute and its two queues are lines of their own, with nothing of one on another.
    rows = ask("""
        select process.pid as pid, thread.name as thread, count(distinct slice.category) as n,
            sum(slice.category = 'all_gather') as gathers,
            sum(slice.category = 'reduce_scatter') as reductions, count(*) as spans
        from slice join thread_track on slice.track_id = thread_track.id
        join thread using (utid) join process using (upid)
        group by 1, 2""")
    lines = {
        "compute": lambda r: r.gathers == r.reductions == 0,
        "gather queue": lambda r: r.gathers == r.spans,
        "reduce queue": lambda r: r.reductions == r.spans,
    }
    expect(
        "lines with spans",
        sorted((r.pid, r.thread) for r in rows),
        sorted((rank, line) for rank in range(n_ranks) for line in (lines if n_ranks > 1 else ["compute"])),
    )
    expect(
        "lines with another's spans",
        [(r.pid, r.thread) for r in rows if not lines.get(r.thread, lambda _: False)(r)],
        [],
    )
    with open(path) as file:
        written = [e for e in json.load(file)["traceEvents"] if e["ph"] in "Xi"]
    expect("spans and moments read", sum(r.spans for r in rows), len(written))

    # A unit's forward and backward run once in each micro-step of each rank; all units alike but the two
    # ends.
    for phase in ("forward", "backward"):
        rows = ask(f"""
            select process.pid as pid, slice.name as name, count(*) as n from slice
            join thread_track on slice.track_id = thread_track.id
            join thread using (utid) join process using (upid)
            where slice.category = '{phase}' and slice.name like '% h.%' group by 1, 2""")
        expect(f"ranks with {phase} spans", len({row.pid for row in rows}), n_ranks)
        for rank in range(n_ranks):
            counts = {row.n for row in rows if row.pid == rank}
            expect(f"{phase} spans of each block on rank {rank} are equally many", len(counts), 1)
    steps = ask("select distinct int_value as step from args where key = 'args.step'")
    expect("steps", len(steps), n_steps)

    for category in ("all_gather", "reduce_scatter"):
        rows = ask(f"""
            select process.pid as pid, sum(args.int_value) as bytes from slice
            join args using (arg_set_id)
            join thread_track on slice.track_id = thread_track.id
            join thread using (utid) join process using (upid)
            where slice.category = '{category}' and args.key = 'args.bytes' group by 1""")
        expect(
            f"ranks whose {category} spans carry bytes",
            sum(row.bytes > 0 for row in rows),
            n_ranks if n_ranks > 1 else 0,
        )

    counters = ask("""
        select count(distinct upid) as n from process_counter_track join counter
        on counter.track_id = process_counter_track.id where name like 'live bytes%' and value > 0""")
    expect("processes with a counter of live bytes", counters[0].n, n_ranks)

    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
