"""Normalizations without state, and layers of two inputs, with PyTorch. `generate.py` runs it."""

from torch import nn

from common import case, draw, fill, write


def norms():
    cases = []

    def layer(op, label, module, *shapes, **attrs):
        name = f"{op}_{label}"
        fill(module, name)
        inputs = [draw(f"{name}/{i}", shape) for i, shape in enumerate(shapes)]
        cases.append(case(op, name, module, *inputs, parameters=list(module.named_parameters()), **attrs))

    for label, shape, how in [
        ("plain", (2, 3, 5), {"normalized_shape": [5]}), ("eps", (3, 4), {"normalized_shape": [4], "eps": 1e-2}),
        ("two_axes", (2, 3, 4), {"normalized_shape": [3, 4]}), ("not_affine", (2, 6), {"normalized_shape": [6], "elementwise_affine": False}),
    ]:  # fmt: skip
        layer("rms_norm", label, nn.RMSNorm(**how), shape, **({"eps": None, "elementwise_affine": True} | how))
    for label, shape, groups, how in [
        ("plain", (2, 6, 3), 2, {}), ("images", (2, 4, 2, 3), 2, {"eps": 1e-2}), ("one_group", (2, 3, 2, 2), 1, {}),
        ("each_channel", (2, 3, 5), 3, {"affine": False}), ("features", (3, 8), 4, {}),
    ]:  # fmt: skip
        attrs = {"groups": groups, "channels": shape[1], "eps": 1e-5, "affine": True} | how
        layer("group_norm", label, nn.GroupNorm(groups, shape[1], **how), shape, **attrs)
    for label, shape, size, how in [
        ("plain", (2, 5, 3), 3, {}), ("even", (1, 4, 2, 2), 2, {"alpha": 0.5, "beta": 0.6, "k": 2.0}), ("wide", (2, 3, 2), 9, {"alpha": 1.0}),
    ]:  # fmt: skip
        attrs = {"size": size, "alpha": 1e-4, "beta": 0.75, "k": 1.0} | how
        layer("local_response_norm", label, nn.LocalResponseNorm(**attrs), shape, **attrs)
    for label, one, two, out, bias in [("plain", (4, 3), (4, 2), 5, True), ("no_bias", (2, 3, 2), (2, 3, 4), 1, False), ("vector", (3,), (3,), 2, True)]:
        module = nn.Bilinear(one[-1], two[-1], out, bias=bias)
        layer("bilinear", label, module, one, two, in1=one[-1], in2=two[-1], out=out, bias=bias)
    write("norms", cases)
