"""Reads a folder with TensorBoard's own reader, and checks that it sees what `src/tensorboard/tests.rs` wrote."""

import math
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util.tensor_util import make_ndarray

run = EventAccumulator(sys.argv[1], size_guidance={"tensors": 0, "histograms": 0, "images": 0, "scalars": 0})
run.Reload()
tags = run.Tags()


def check(name, found, expected):
    assert found == expected, f"{name}: {found}, not {expected}"


check("scalars", sorted(tags["scalars"]), ["recall/0", "recall/1", "train_loss", "zero"])
losses = [(event.step, event.value) for event in run.Scalars("train_loss")]
assert [step for step, _ in losses] == [5, 10] and math.isclose(losses[1][1], 0.1, rel_tol=1e-6), losses
check("zero", [event.value for event in run.Scalars("zero")], [0.0, 0.0])
check("recall/1", run.Scalars("recall/1")[0].value, 0.5)

check("images", sorted(tags["images"]), ["confusion", "images"])
image = run.Images("confusion")[0]
check("confusion", (image.height, image.width), (2, 3))
assert image.encoded_image_string.startswith(b"\x89PNG")

check("histograms", tags["histograms"], ["weights"])
histogram = run.Histograms("weights")[1].histogram_value
check("weights", (histogram.min, histogram.max, histogram.num, histogram.sum), (-1.0, 2.0, 3.0, 1.5))
check("limits", list(histogram.bucket_limit), [0.0, 1.0, 2.0])
check("buckets", list(histogram.bucket), [2.0, 0.0, 1.0])

check("texts", make_ndarray(run.Tensors("texts")[0].tensor_proto).tolist(), [b"first", "zweiter ü".encode()])
check("plugin of texts", run.SummaryMetadata("texts").plugin_data.plugin_name, "text")

contents = run.PluginTagToContent("hparams")
data = plugin_data_pb2.HParamsPluginData.FromString(contents["_hparams_/session_start_info"])
hparams = {name: getattr(v, v.WhichOneof("kind")) for name, v in data.session_start_info.hparams.items()}
check("hparams", hparams, {"lr": 0.5, "name": "wide", "augment": True, "sizes": "[1,2]"})
end = plugin_data_pb2.HParamsPluginData.FromString(contents["_hparams_/session_end_info"])
check("status", end.session_end_info.status, 1)
print("all kinds are seen")
