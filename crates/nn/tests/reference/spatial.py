"""Layers over one, two and three spatial axes, with PyTorch. `generate.py` runs it."""

from torch import nn

from common import case, distinct, draw, fill, write


def spatial():
    cases = []

    def layer(op, label, module, x, **attrs):
        name = f"{op}_{label}"
        fill(module, name)
        cases.append(case(op, name, module, x, parameters=list(module.named_parameters()), **attrs))

    convs = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    for label, shape, out, kernel, how in [
        ("plain", (2, 3, 6), 2, [3], {}), ("stride", (1, 2, 8), 4, [3], {"stride": [2], "padding": [2], "dilation": [2], "groups": 2}),
        ("unbatched", (2, 5), 3, [2], {"bias": False}), ("same", (1, 2, 6), 2, [4], {"padding": "same"}),
        ("same_dilated", (1, 1, 5, 7), 2, [3, 2], {"padding": "same", "dilation": [2, 3]}), ("valid", (1, 1, 4, 4), 1, [2, 3], {"padding": "valid"}),
        ("reflect", (1, 2, 5, 4), 2, [3, 3], {"padding": [2, 1], "padding_mode": "reflect"}),
        ("replicate", (1, 1, 3, 4), 2, [3, 2], {"padding": [2, 1], "padding_mode": "replicate", "stride": [2, 1]}),
        ("circular", (1, 2, 4, 4), 2, [3, 3], {"padding": [1, 2], "padding_mode": "circular"}),
        ("circular_same", (1, 1, 5), 2, [4], {"padding": "same", "padding_mode": "circular"}),
        ("plain", (1, 2, 3, 4, 3), 2, [2, 3, 2], {"padding": [1, 0, 1], "stride": [2, 1, 1]}),
        ("groups", (2, 2, 3, 3, 2), 2, [2, 2, 1], {"groups": 2, "dilation": [2, 1, 1]}),
    ]:  # fmt: skip
        n = len(kernel)
        attrs = {"stride": [1] * n, "padding": [0] * n, "dilation": [1] * n, "groups": 1, "bias": True, "padding_mode": "zeros"} | how
        channels = shape[-n - 1]
        module = convs[n](channels, out, kernel, **attrs)
        layer(f"conv{n}d", label, module, draw(label, shape, digits=2), in_channels=channels, out_channels=out, kernel=kernel, **attrs)

    transposed = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
    for label, shape, out, kernel, how in [
        ("plain", (2, 3, 4), 2, [3], {}), ("stride", (1, 2, 3), 2, [4], {"stride": [3], "padding": [1], "output_padding": [2]}),
        ("double", (1, 2, 3, 4), 3, [4, 4], {"stride": [2, 2], "padding": [1, 1]}),
        ("groups", (2, 4, 3, 2), 2, [3, 2], {"groups": 2, "stride": [2, 3], "padding": [1, 0], "output_padding": [1, 2]}),
        ("dilation", (1, 2, 3, 3), 2, [3, 2], {"dilation": [2, 3], "output_padding": [1, 2], "bias": False}),
        ("unbatched", (2, 3, 3), 1, [2, 2], {}), ("plain", (1, 2, 2, 3, 2), 2, [2, 2, 3], {"stride": [2, 1, 2], "padding": [0, 1, 1]}),
    ]:  # fmt: skip
        n = len(kernel)
        attrs = {"stride": [1] * n, "padding": [0] * n, "output_padding": [0] * n, "dilation": [1] * n, "groups": 1, "bias": True} | how
        channels = shape[-n - 1]
        module = transposed[n](channels, out, kernel, **attrs)
        layer(f"conv_transpose{n}d", label, module, draw(label, shape, digits=2), in_channels=channels, out_channels=out, kernel=kernel, **attrs)

    largest, means = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}, {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
    for label, shape, window, stride, padding, dilation, ceil in [
        ("plain", (2, 2, 7), [3], [2], [1], [1], False), ("ceil", (1, 2, 8), [3], [2], [0], [1], True), ("dilated", (1, 1, 9), [3], [2], [1], [2], True),
        ("ceil", (1, 2, 6, 5), [3, 2], [2, 3], [1, 1], [1, 1], True), ("ceil_outside", (1, 1, 4, 5), [2, 3], [3, 4], [1, 1], [1, 1], True),
        ("dilated", (2, 1, 6, 7), [2, 3], [1, 2], [0, 1], [2, 2], False), ("unbatched", (2, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], False),
        ("plain", (1, 2, 4, 4, 5), [2, 2, 3], [2, 1, 2], [1, 0, 1], [1, 1, 1], False), ("ceil", (1, 1, 3, 4, 3), [2, 3, 2], [2, 2, 2], [0, 1, 1], [1, 1, 1], True),
    ]:  # fmt: skip
        n = len(window)
        attrs = {"window": window, "stride": stride, "padding": padding, "ceil_mode": ceil}
        module = largest[n](window, stride, padding, dilation, ceil_mode=ceil)
        layer(f"max_pool{n}d", label, module, distinct(label, shape), **attrs, dilation=dilation)
        at = largest[n](window, stride, padding, dilation, ceil_mode=ceil, return_indices=True)
        cases.append(case("where_max_pool", f"where_max_pool{n}d_{label}", lambda x: at(x)[1], distinct(label, shape), gradient=False, **attrs, dilation=dilation))
        if dilation == [1] * n:
            for include in (True, False):
                module = means[n](window, stride, padding, ceil_mode=ceil, count_include_pad=include)
                layer(f"avg_pool{n}d", f"{label}_{include}", module, draw(label, shape), **attrs, count_include_pad=include)
        if n > 1:
            module = means[n](window, stride, padding, ceil_mode=ceil, divisor_override=5)
            layer(f"avg_pool{n}d", f"{label}_divisor", module, draw(label, shape), **attrs, count_include_pad=True, divisor=5)

    adaptive = {"avg": [nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d], "max": [nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d]}
    for label, shape, size in [("overlaps", (2, 2, 7), [3]), ("grows", (1, 1, 3, 2), [5, 4]), ("unbatched", (2, 4, 5), [3, 5]), ("overlaps", (1, 2, 3, 4, 5), [2, 4, 3])]:
        for kind, layers in adaptive.items():
            layer(f"adaptive_{kind}_pool{len(size)}d", label, layers[len(size) - 1](size), distinct(label, shape), size=size)

    for kind, layers in {
        "zero": [nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d], "reflection": [nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d],
        "replication": [nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d], "circular": [nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d],
        "constant": [nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d],
    }.items():  # fmt: skip
        value = [1.5] if kind == "constant" else []
        for label, shape, sides in [("one", (1, 2, 4), [[2, 1]]), ("two", (1, 1, 3, 4), [[1, 2], [0, 3]]), ("three", (1, 1, 2, 3, 3), [[1, 0], [1, 2], [0, 1]])]:
            flat = [n for pair in reversed(sides) for n in pair]
            layer(f"{kind}_pad", label, layers[len(sides) - 1](tuple(flat), *value), draw(label, shape), sides=sides, **({"value": 1.5} if value else {}))

    for label, shape, how in [
        ("nearest", (1, 2, 3, 4), {"scale_factor": [2.0, 1.5]}), ("size", (1, 1, 5), {"size": [8], "mode": "linear"}),
        ("bilinear", (1, 2, 3, 3), {"scale_factor": [2.0, 2.0], "mode": "bilinear", "align_corners": True}),
        ("bicubic", (1, 1, 4, 3), {"size": [7, 5], "mode": "bicubic"}), ("trilinear", (1, 1, 2, 3, 2), {"size": [3, 2, 4], "mode": "trilinear"}),
    ]:  # fmt: skip
        module = nn.Upsample(**{key: tuple(v) if isinstance(v, list) else v for key, v in how.items()})
        layer("upsample", label, module, draw(label, shape), **how)
    layer("pixel_shuffle", "images", nn.PixelShuffle(2), draw("shuffle", (2, 8, 2, 3)), factor=2)
    layer("pixel_shuffle", "unbatched", nn.PixelShuffle(3), draw("unbatched", (9, 1, 2)), factor=3)
    layer("pixel_unshuffle", "images", nn.PixelUnshuffle(2), draw("unshuffle", (1, 2, 4, 6)), factor=2)
    layer("unflatten", "features", nn.Unflatten(1, (2, -1)), draw("unflatten", (2, 6)), axis=1, sizes=[2, -1])
    write("spatial", cases)
