"""Reads a trace with Perfetto's trace processor, and checks that it sees what `tests/it/profiler.rs` recorded."""

import sys

from perfetto.trace_processor import TraceProcessor

processor = TraceProcessor(trace=sys.argv[1])


def rows(query):
    return list(processor.query(query))


threads = {row.name for row in rows("select name from thread where name is not null")}
assert {"devices", "fulmen-data-0", "fulmen-transfer", "fulmen-checkpoint"} <= threads, threads

steps = rows("select extract_arg(arg_set_id, 'args.number') as number, dur from slice where name = 'step' order by ts")
assert [row.number for row in steps] == list(range(1, 11)), steps
assert all(row.dur > 0 for row in steps), steps

waits = rows(
    "select parent.name as around from slice join slice as parent on slice.parent_id = parent.id "
    "where slice.name = 'wait for batch'"
)
assert [row.around for row in waits] == ["step"] * 10, [row.around for row in waits]

wrong = [(row.name, row.value) for row in rows("select name, value from stats where severity = 'error' and value > 0")]
assert not wrong, wrong
processor.close()
print("the trace is read")
