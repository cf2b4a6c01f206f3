"""Answers of libtpu's metric service, made with the messages of the package tpu-info.

    pip install tpu-info
    python libtpu_metrics.py > libtpu_metrics.txt    # one line NAME HEX per answer, and tpu-info's output for them
    python libtpu_metrics.py serve                   # serves them and prints the port
"""

import sys
from concurrent import futures

import grpc
from tpu_info import device, metrics
from tpu_info.proto import tpu_metric_service_pb2 as pb
from tpu_info.proto import tpu_metric_service_pb2_grpc as pb_grpc
from tpu_info.proto import tpu_telemetry_pb2 as telemetry

GIB = 1 << 30


def by_device(name, values):
    """A gauge for each device; the attribute is its number. In reverse order, because no order is guaranteed."""
    metric = pb.TPUMetric(name=name, description="")
    for index, value in reversed(list(enumerate(values))):
        gauge = pb.Gauge(as_int=value) if isinstance(value, int) else pb.Gauge(as_double=value)
        attribute = pb.Attribute(key="device-id", value=pb.AttrValue(int_attr=index))
        entry = metric.metrics.add(attribute=attribute, gauge=gauge)
        entry.timestamp.FromSeconds(1_790_000_000)
    return metric


def by_core(name, values, text):
    """A value for each core; one of the attributes is its number, which is a text in newer versions of libtpu."""
    metric = pb.TPUMetric(name=name)
    for index, value in enumerate(values):
        ordinal = pb.AttrValue(string_attr=str(index)) if text else pb.AttrValue(int_attr=index)
        attributes = [
            pb.Attribute(key="core_type", value=pb.AttrValue(string_attr="TENSOR_CORE")),
            pb.Attribute(key="device_ordinal", value=ordinal),
        ]
        attribute = pb.Attribute(key="core", value=pb.AttrValue(kvlist_attr=pb.KeyValueList(attributes=attributes)))
        if isinstance(value, int):
            metric.metrics.add(attribute=attribute, gauge=pb.Gauge(as_int=value))
        else:
            metric.metrics.add(attribute=attribute, distribution=value)
    return metric


def times(mean, counts):
    options = pb.Distribution.BucketOptions
    buckets = options(exponential_buckets=options.Exponential(num_finite_buckets=30, growth_factor=2.0, scale=10.0))
    return pb.Distribution(count=sum(counts), mean=mean, bucket_options=buckets, bucket_counts=counts)


def by_size(name, values, key="buffer-size"):
    """A distribution for each pair of a size and its values. A size may appear several times, once for each device."""
    metric = pb.TPUMetric(name=name)
    for size, value in values:
        attributes = [
            pb.Attribute(key="other", value=pb.AttrValue(string_attr="x")),
            pb.Attribute(key=key, value=pb.AttrValue(string_attr=size)),
        ]
        if key != "buffer-size":
            del attributes[0]
        attribute = pb.Attribute(key="all", value=pb.AttrValue(kvlist_attr=pb.KeyValueList(attributes=attributes)))
        metric.metrics.add(attribute=attribute, distribution=value)
    return metric


def status():
    """Two TensorCores with a program, one with a program in its queue, one without, and a SparseCore with a program."""
    response = pb.GetTpuRuntimeStatusResponse(host_name="t1v-n-0")
    tensor, sparse = telemetry.TPU_CORE_TYPE_TENSOR_CORE, telemetry.TPU_CORE_TYPE_SPARSE_CORE
    for index, (kind, program, queued) in enumerate(
        [(tensor, b"\x01\x02", 0), (tensor, b"\x01", 2), (tensor, b"", 1), (tensor, b"", 0), (sparse, b"\x03", 0)]
    ):
        state = response.core_states[index]
        state.core_id.global_core_id = index
        state.core_id.chip_id = index // 2
        state.core_id.core_on_chip.type = kind
        state.core_id.core_on_chip.index = index % 2
        state.program_fingerprint = program
        state.launch_id = 7
        for run in range(queued):
            state.queued_program_info.add(run_id=run, launch_id=8, program_fingerprint=b"\x09")
    return response


NAMES = metrics.MetricName
# Four cores on two chips.
ANSWERS = [
    by_device(NAMES.MEMORY_USAGE.value, [12 * GIB, 13 * GIB + 7, 0, GIB // 2]),
    by_device(NAMES.TOTAL_MEMORY.value, [16 * GIB] * 4),
    by_device(NAMES.DUTY_CYCLE_PCT.value, [87.5, 3.25]),
    by_device(NAMES.HBM_BW_UTIL.value, [55.5, 44.0, 0.0, 1.0]),
    by_device(NAMES.TENSORCORE_IDLE_DURATION.value, [0.0, 0.25, 120.0, 7.5]),
    by_core(NAMES.HLO_QUEUE_SIZE.value, [2, 0, 0, 31], text=False),
    by_core(
        NAMES.HLO_EXECUTION_TIMING_DISTRIBUTION_MICROSECONDS.value,
        [
            times(310.0, [0, 0, 0, 2, 10, 70, 15, 3]),
            times(25.5, [0, 4, 4]),
            times(0.0, []),
            times(9000.0, [0] * 10 + [1]),
        ],
        text=True,
    ),
    by_size(
        NAMES.BUFFER_TRANSFER_LATENCY_US.value,
        [("8MB+", times(300.0, [0, 0, 5, 5, 0])), ("4MB+", times(50.0, [0, 4, 4])), ("8MB+", times(90.0, [0, 9, 0, 0, 1]))],
    ),
    by_size(NAMES.COLLECTIVE_E2E_LATENCY_US.value, [("all-reduce", times(90.0, [0, 1, 2, 3]))], key="collective"),
    by_size(NAMES.GRPC_TCP_DELIVERY_RATE_MBPS.value, [("", times(90.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3]))]),
]
# Distributions that tpu-info reads with get_transfer_latency.
LATENCIES = ["buffer_transfer_latency", "collective_e2e_latency", "grpc_tcp_delivery_rate"]


class Service(pb_grpc.RuntimeMetricServiceServicer):
    def GetRuntimeMetric(self, request, context):
        for answer in ANSWERS:
            if answer.name == request.metric_name:
                return pb.MetricResponse(metric=answer)
        context.abort(grpc.StatusCode.NOT_FOUND, f"no metric {request.metric_name}")

    def GetTpuRuntimeStatus(self, request, context):
        return status()


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    pb_grpc.add_RuntimeMetricServiceServicer_to_server(Service(), server)
    port = server.add_secure_port("127.0.0.1:0", grpc.local_server_credentials())
    server.start()
    return server, port


if __name__ == "__main__":
    server, port = serve()
    if sys.argv[1:] == ["serve"]:
        print(port, flush=True)
        server.wait_for_termination()
    address = f"localhost:{port}"
    for answer in ANSWERS:
        print(answer.name, answer.SerializeToString(deterministic=True).hex())
    for usage in metrics.get_chip_usage(device.TpuChip.V3, address):
        print("#", usage)
    for timing in metrics.get_hlo_exec_timing(device.TpuChip.V3, address):
        print("#", timing)
    print("GetTpuRuntimeStatus", status().SerializeToString(deterministic=True).hex())
    for state in metrics.get_tpuz_info(address):
        print("#", state.global_core_id, state.core_type, state.program_fingerprint, len(state.queued_programs))
    for latency in LATENCIES:
        for distribution in metrics.get_transfer_latency(latency, address):
            print("#", latency, distribution)
