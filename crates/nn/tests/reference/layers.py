"""Layers, with PyTorch. `generate.py` runs it."""

import torch
import torch.nn.functional as F
from torch import nn

from common import case, distinct, draw, fill, labels, write


def layers():
    cases = []

    def layer(op, name, module, x, **attrs):
        name = f"{op}_{name}"
        fill(module, name)
        cases.append(case(op, name, module, x, parameters=list(module.named_parameters()), **attrs))

    for label, shape, out, bias in [
        ("plain", (4, 3), 5, True), ("no_bias", (2, 6), 3, False), ("one", (1, 1), 1, True), ("sequence", (2, 3, 4), 2, True), ("vector", (5,), 2, True),
    ]:  # fmt: skip
        layer("linear", label, nn.Linear(shape[-1], out, bias=bias), draw(label, shape), in_features=shape[-1], out_features=out, bias=bias)

    for label, shape, out, kernel, how in [
        ("plain", (2, 3, 5, 4), 2, [3, 3], {}),
        ("no_bias", (1, 2, 5, 5), 3, [3, 3], {"bias": False, "padding": [1, 1]}),
        ("stride", (2, 2, 7, 6), 2, [3, 2], {"stride": [2, 1], "padding": [1, 0]}),
        ("stride_leaves_rest", (1, 2, 6, 8), 2, [3, 3], {"stride": [2, 3]}),
        ("groups", (1, 4, 5, 5), 6, [3, 3], {"groups": 2, "padding": [1, 1]}),
        ("depthwise", (1, 3, 6, 6), 3, [3, 3], {"groups": 3, "stride": [2, 2], "padding": [1, 1], "bias": False}),
        ("dilation", (1, 2, 8, 7), 2, [3, 3], {"dilation": [2, 2], "padding": [2, 1]}),
        ("one_by_one", (2, 3, 3, 3), 4, [1, 1], {"stride": [2, 2]}),
    ]:  # fmt: skip
        how = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "bias": True} | how
        module = nn.Conv2d(shape[1], out, kernel, **how)
        layer("conv2d", label, module, draw(label, shape, digits=2), in_channels=shape[1], out_channels=out, kernel=kernel, **how)

    pools = [
        ("halve", (2, 2, 4, 6), [2, 2], [2, 2], [0, 0]), ("odd", (1, 2, 5, 7), [2, 2], [2, 2], [0, 0]),
        ("resnet", (1, 2, 7, 7), [3, 3], [2, 2], [1, 1]), ("uneven", (1, 1, 7, 8), [2, 3], [1, 2], [1, 0]),
        ("skipping", (1, 1, 8, 8), [2, 2], [3, 3], [0, 0]), ("global", (2, 3, 3, 4), [3, 4], [3, 4], [0, 0]),
    ]  # fmt: skip
    for label, shape, window, stride, padding in pools:
        how = {"window": window, "stride": stride, "padding": padding}
        cases.append(case("max_pool2d", f"max_pool2d_{label}", lambda x: F.max_pool2d(x, window, stride, padding), distinct(label, shape), **how))
        for count in (True, False):
            name = f"avg_pool2d_{label}" + ("" if count else "_without_pad")
            run = lambda x: F.avg_pool2d(x, window, stride, padding, count_include_pad=count)
            cases.append(case("avg_pool2d", name, run, draw(label, shape), **how, count_include_pad=count))
    ties = torch.ones(1, 1, 4, 4)
    cases.append(case("max_pool2d", "max_pool2d_ties", lambda x: F.max_pool2d(x, 2), ties, window=[2, 2], stride=[2, 2], padding=[0, 0]))
    for label, shape, size in [
        ("one", (2, 3, 4, 5), [1, 1]), ("divides", (1, 2, 4, 6), [2, 3]), ("overlaps", (1, 2, 7, 5), [3, 2]), ("larger", (1, 1, 3, 2), [4, 5]),
    ]:  # fmt: skip
        name = f"adaptive_avg_pool2d_{label}"
        cases.append(case("adaptive_avg_pool2d", name, lambda x: F.adaptive_avg_pool2d(x, size), draw(name, shape), size=size))
    for label, shape, normalized, how in [
        ("plain", (2, 3, 5), [5], {}), ("two_axes", (3, 2, 4), [2, 4], {"eps": 1e-3}), ("not_affine", (2, 6), [6], {"elementwise_affine": False}),
        ("no_bias", (4, 3), [3], {"bias": False}), ("one", (3, 1), [1], {}),
    ]:  # fmt: skip
        attrs = {"normalized_shape": normalized, "eps": 1e-5, "elementwise_affine": True, "bias": True} | how
        layer("layer_norm", label, nn.LayerNorm(**attrs), draw(label, shape), **attrs)
    for label, rows, width, shape, padding in [("plain", 5, 3, (4,), None), ("table", 7, 2, (2, 3), None), ("padding", 4, 3, (3, 4), 2), ("one", 3, 2, (), None)]:
        module = nn.Embedding(rows, width, padding_idx=padding)
        attrs = {"rows": rows, "width": width, "padding_idx": padding}
        layer("embedding", label, module, labels(f"embedding_{label}/x", shape, rows), **attrs)
    for mode in ("mean", "sum", "max"):
        for label, padding in [("plain", None), ("padding", 1)]:
            name = f"{mode}_{label}"
            module = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding)
            indices = torch.tensor([[0, 4, 2, 0], [1, 3, 1, 2], [1, 1, 1, 1]])
            layer("embedding_bag", name, module, indices, rows=5, width=3, mode=mode, padding_idx=padding)
    write("layers", cases)
