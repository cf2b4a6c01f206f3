"""Writes the reference values of this folder with PyTorch: layers, losses, optimizers, schedules, initial values, weights.

Not run by the tests: they read the files that this wrote, which are committed. To write them again:

    pip install torch==2.9.0 numpy safetensors && python generate.py

A tensor is {"dtype", "shape", "data"}: row-major, floats in the fewest digits that read back as the same number, NaN
and the infinities as strings. Inputs are drawn from a generator seeded by the case's name, so a new case changes no old
one. A case of a layer has "inputs", "parameters", "outputs", "cotangent", "gradients" (one an input, null for integers)
and "parameter_gradients"; what the other files hold is said at the functions that write them.
"""

import json
import math
import platform
import zlib
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

FOLDER = Path(__file__).parent
MADE_WITH = {"torch": torch.__version__, "python": platform.python_version(), "device": "cpu"}
NAN, INF = float("nan"), float("inf")
DTYPES = {torch.float32: "f32", torch.int64: "i32", torch.bool: "bool"}  # targets are i32 on our side


def number(value):
    if isinstance(value, int):
        return int(value)  # a truth value is 0 or 1
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return float(str(np.float32(value)))


def tensor(value):
    value = value.detach()
    return {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data": [number(v) for v in value.flatten().tolist()]}


def tensors(named):
    return {name: tensor(value) for name, value in named}


def write(name, cases):
    names = [case["name"] for case in cases]
    assert len(set(names)) == len(names), names
    lines = ",\n".join(json.dumps(case, separators=(",", ":"), allow_nan=False) for case in cases)
    text = f'{{"made_with":{json.dumps(MADE_WITH)},"cases":[\n{lines}\n]}}\n'
    assert len(text) < 200_000, f"{name} is too large: {len(text)} bytes"
    (FOLDER / f"{name}.json").write_text(text)
    print(f"{name}.json: {len(cases)} cases, {len(text)} bytes")


def rng(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def draw(name, shape, low=-2.0, high=2.0, digits=3):
    return torch.tensor(np.round(rng(name).uniform(low, high, shape), digits), dtype=torch.float32)


def distinct(name, shape):
    """Values of which no two are equal, so that a maximum has no ties."""
    n = math.prod(shape)
    return torch.tensor(rng(name).permutation(n).reshape(shape) * 0.25 - n / 8, dtype=torch.float32)


def labels(name, shape, classes):
    return torch.tensor(rng(name).integers(0, classes, shape))


def fill(module, name):
    """Short numbers in all parameters, so that the files stay small."""
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            parameter.copy_(draw(f"{name}/{key}", parameter.shape, -1, 1, 2))
    return module


def case(op, name, f, *inputs, parameters=(), gradient=True, **attrs):
    """Runs `f` on the inputs, and its derivative under a drawn cotangent."""
    inputs = [v.clone().requires_grad_() if gradient and v.is_floating_point() else v for v in inputs]
    output = f(*inputs)
    made = {"op": op, "name": name, "attrs": attrs, "inputs": [tensor(v) for v in inputs], "outputs": [tensor(output)]}
    if parameters:
        made["parameters"] = tensors(parameters)
    if gradient:
        cotangent = draw(name + "/cotangent", output.shape, digits=2)
        for _, parameter in parameters:
            parameter.grad = None
        output.backward(cotangent)
        made["cotangent"] = tensor(cotangent)
        made["gradients"] = [None if v.grad is None else tensor(v.grad) for v in inputs]
        if parameters:
            made["parameter_gradients"] = tensors((key, p.grad) for key, p in parameters)
    else:
        made.update(cotangent=None, gradients=[None] * len(inputs))
    return made


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
    write("layers", cases)


def batch_norm():
    """Three training steps, each with its own input and cotangent and with the running statistics after it; then one
    case of evaluation with those statistics, under "eval"."""
    cases = []
    for label, shape, how in [
        ("plain", (4, 3, 2, 3), {}), ("not_affine", (3, 2, 2, 2), {"affine": False}), ("momentum", (2, 2, 3, 3), {"momentum": 0.3, "eps": 1e-3}),
        ("one_channel", (5, 1, 1, 1), {}), ("untracked", (3, 2, 2, 2), {"track_running_stats": False}),
        ("features", (5, 3), {}), ("length", (2, 3, 4), {"momentum": 0.2}),
    ]:  # fmt: skip
        attrs = {"features": shape[1], "eps": 1e-5, "momentum": 0.1, "affine": True, "track_running_stats": True} | how
        op, kind = ("batch_norm2d", nn.BatchNorm2d) if len(shape) == 4 else ("batch_norm1d", nn.BatchNorm1d)
        name = f"{op}_{label}"
        module = fill(kind(shape[1], **how), name)
        parameters = list(module.named_parameters())
        steps = []
        for i in range(3):
            x = draw(f"{name}/{i}", shape) * (i + 1) + i
            step = case(op, f"{name}_step_{i}", module, x, parameters=parameters)
            steps.append(step | {"buffers": {k: int(v) if k == "num_batches_tracked" else tensor(v) for k, v in module.named_buffers()}})
        module.eval()
        evaluated = case(op, f"{name}_eval", module, draw(f"{name}/eval", shape), parameters=parameters)
        cases.append({"op": op, "name": name, "attrs": attrs, "steps": steps, "eval": evaluated})
    write("batch_norm", cases)


def attention():
    """The function takes queries, keys and values; the layer takes one input for all three, or three. A mask is true
    where a query sees a key."""
    cases = []
    for label, q, k, v, how in [
        ("plain", (2, 3, 4), (2, 5, 4), (2, 5, 2), {}), ("causal", (2, 2, 4, 3), (2, 2, 4, 3), (2, 2, 4, 3), {"causal": True}),
        ("causal_wide", (3, 2), (5, 2), (5, 2), {"causal": True}), ("scale", (1, 3, 4), (1, 3, 4), (1, 3, 4), {"scale": 0.3}),
        ("mask", (2, 3, 4), (2, 5, 4), (2, 5, 4), {"mask": (3, 5)}), ("padding", (2, 2, 3, 4), (2, 2, 4, 4), (2, 2, 4, 4), {"mask": (2, 1, 1, 4)}),
        ("added", (2, 3, 4), (2, 5, 4), (2, 5, 4), {"added": (2, 3, 5)}),
    ]:  # fmt: skip
        name = f"attention_{label}"
        attrs, mask = dict(how), None
        if "mask" in how:
            mask = torch.tensor(rng(name + "/mask").random(how["mask"]) < 0.6)
            mask[..., 0] = True
        if "added" in how:
            mask = draw(name + "/mask", how["added"])
        if mask is not None:
            attrs = {"mask": tensor(mask)}
        run = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal="causal" in how, scale=how.get("scale"))
        cases.append(case("attention", name, run, *(draw(f"{name}/{i}", shape) for i, shape in enumerate([q, k, v])), **attrs))
    for label, shapes, heads, how in [
        ("self", [(2, 3, 4)], 2, {}), ("self_causal", [(1, 4, 6)], 3, {"causal": True}), ("no_bias", [(2, 2, 4)], 1, {"bias": False}),
        ("cross", [(2, 2, 4), (2, 3, 4), (2, 3, 4)], 2, {}), ("padding", [(2, 4, 4)], 2, {"padding": True}),
    ]:  # fmt: skip
        name = f"multihead_attention_{label}"
        width = shapes[0][-1]
        module = fill(nn.MultiheadAttention(width, heads, bias=how.get("bias", True), batch_first=True), name)
        length = shapes[0][1]
        attrs = {"embed_dim": width, "num_heads": heads, "bias": how.get("bias", True), "causal": how.get("causal", False)}
        hidden = {}
        if "causal" in how:
            hidden["attn_mask"] = torch.ones(length, length).triu(1) > 0
        if "padding" in how:
            seen = torch.tensor([[True] * length, [True] * (length - 2) + [False] * 2])
            attrs["mask"] = tensor(seen[:, None, None, :])
            hidden["key_padding_mask"] = ~seen

        def run(q, k=None, v=None):
            return module(q, q if k is None else k, q if v is None else v, need_weights=False, **hidden)[0]

        inputs = [draw(f"{name}/{i}", shape) for i, shape in enumerate(shapes)]
        cases.append(case("multihead_attention", name, run, *inputs, parameters=list(module.named_parameters()), **attrs))
    write("attention", cases)


class ConvNet(nn.Module):
    """6x6 pictures of two channels in, 3 classes out."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.fc = nn.Conv2d(4, 6, 3), nn.Linear(6, 3)

    def stages(self, x):
        yield "conv1", (x := self.conv1(x))
        yield "bn", (x := self.bn(x))
        yield "pool", (x := F.max_pool2d(torch.relu(x), 3, 2, 1))
        yield "conv2", (x := self.conv2(x))
        yield "mean", (x := F.adaptive_avg_pool2d(torch.relu(x), 1))
        yield "logits", self.fc(x.flatten(1))


class Block(nn.Module):
    """A transformer block with the normalization in front, over [batch, 5, 8], and a classifier of the mean."""

    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm2, self.linear1, self.linear2 = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 3)

    def stages(self, x):
        hidden = torch.ones(5, 5).triu(1) > 0
        yield "norm1", (h := self.norm1(x))
        yield "attention", (h := self.attention(h, h, h, attn_mask=hidden, need_weights=False)[0])
        yield "sum", (x := x + h)
        yield "norm2", (h := self.norm2(x))
        yield "gelu", (h := F.gelu(self.linear1(h)))
        yield "linear2", (h := self.linear2(h))
        yield "logits", self.head((x + h).mean(1))


def autocast():
    """Training steps under torch.autocast("cpu", bfloat16): the dtype after each stage, logits, loss, gradients and
    running statistics."""
    cases = []
    for name, module, x in [("conv_net", ConvNet(), draw("conv_net/x", (4, 2, 6, 6))), ("block", Block(), draw("block/x", (4, 5, 8)))]:
        fill(module, name)
        target = labels(name, (4,), 3)
        parameters = tensors(module.named_parameters())
        with torch.autocast("cpu", torch.bfloat16):
            stages = dict(module.stages(x))
        loss = F.cross_entropy(stages["logits"].float(), target)
        loss.backward()
        made = {"op": "autocast", "name": name, "inputs": [tensor(x), tensor(target)], "parameters": parameters}
        made["dtypes"] = {k: str(v.dtype).removeprefix("torch.").replace("float32", "f32").replace("bfloat16", "bf16") for k, v in stages.items()}
        made |= {"logits": tensor(stages["logits"].float()), "loss": tensor(loss)}
        made["parameter_gradients"] = tensors((k, p.grad) for k, p in module.named_parameters())
        made["buffers"] = tensors((k, b) for k, b in module.named_buffers() if b.is_floating_point())
        cases.append(made)
    write("autocast", cases)


def activations():
    functions = {
        "relu": (F.relu, {}), "gelu": (F.gelu, {"approximate": "none"}), "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
        "tanh": (torch.tanh, {}), "sigmoid": (torch.sigmoid, {}), "silu": (F.silu, {}),
        "leaky_relu": (F.leaky_relu, {"slope": 0.01}), "leaky_relu_steep": (lambda x: F.leaky_relu(x, 0.3), {"slope": 0.3}),
        "elu": (F.elu, {"alpha": 1.0}), "elu_alpha": (lambda x: F.elu(x, 0.5), {"alpha": 0.5}),
        "softplus": (F.softplus, {"beta": 1.0, "threshold": 20.0}),
        "softplus_beta": (lambda x: F.softplus(x, 2.0, 5.0), {"beta": 2.0, "threshold": 5.0}),
    }  # fmt: skip
    cases = []
    for name, (f, attrs) in functions.items():
        op = name.removesuffix("_steep").removesuffix("_alpha").removesuffix("_beta")
        far = torch.tensor([0.0, -0.001, 0.001, 8, -8, 25, -25, 90, -90, 1000, -1000])
        cases.append(case(op, f"{name}_plain", f, draw(name, (3, 7), -5, 5), **attrs))
        cases.append(case(op, f"{name}_far", f, far, **attrs))
        cases.append(case(op, f"{name}_empty", f, torch.zeros(0, 3), **attrs))
        cases.append(case(op, f"{name}_special", f, torch.tensor([INF, -INF, NAN]), gradient=False, **attrs))
    write("activations", cases)


def losses():
    """The logits' class axis is 1, as in PyTorch. "mean" over targets that are all ignored is NaN."""
    cases = []
    for label, shape, attrs, scale in [
        ("plain", (4, 10), {}, 3), ("one", (1, 2), {}, 3), ("smooth", (4, 5), {"label_smoothing": 0.1}, 3), ("confident", (3, 4), {}, 200),
        ("smooth_confident", (3, 4), {"label_smoothing": 0.1}, 100), ("pixels", (2, 3, 2, 2), {}, 3), ("ignored", (5, 4), {"ignore_index": -100}, 3),
        ("smooth_ignored", (5, 4), {"ignore_index": 2, "label_smoothing": 0.1}, 3),
    ]:  # fmt: skip
        logits = draw(label, shape, -scale, scale)
        target = labels(label, (shape[0], *shape[2:]), shape[1])
        if "ignore_index" in attrs:
            target[1], target[3] = attrs["ignore_index"], attrs["ignore_index"]
        for reduction in ("mean", "sum", "none"):
            run = lambda x, t: F.cross_entropy(x, t, reduction=reduction, **attrs)
            cases.append(case("cross_entropy", f"cross_entropy_{label}_{reduction}", run, logits, target, reduction=reduction, **attrs))
    nobody = torch.full((3,), -100)
    for reduction in ("mean", "sum", "none"):
        run = lambda x, t: F.cross_entropy(x, t, reduction=reduction)
        name = f"cross_entropy_all_ignored_{reduction}"
        cases.append(case("cross_entropy", name, run, draw(name, (3, 4)), nobody, gradient=False, reduction=reduction, ignore_index=-100))
    for reduction in ("mean", "sum", "none"):
        run = lambda x, t: F.mse_loss(x, t, reduction=reduction)
        x, t = draw("mse/x", (3, 4)), draw("mse/t", (3, 4))
        cases.append(case("mse_loss", f"mse_loss_{reduction}", run, x, t, reduction=reduction))
    write("losses", cases)


def optimizers():
    """Each case: the first parameters, and for each of 20 steps the gradients, the learning rate and momentum where a
    schedule moves them, and the parameters after it. The gradients are those of a sum of parabolas and cosines along
    the optimizer's own path; they are in the file, so whoever reads it needs no derivatives to go the same way."""
    sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
    table = [
        ("sgd", "plain", sgd, {"lr": 0.1}), ("sgd", "momentum", sgd, {"lr": 0.1, "momentum": 0.9}),
        ("sgd", "nesterov", sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True}), ("sgd", "weight_decay", sgd, {"lr": 0.1, "weight_decay": 0.05}),
        ("sgd", "dampening", sgd, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
        ("sgd", "momentum_weight_decay", sgd, {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}),
        ("sgd", "nesterov_weight_decay", sgd, {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.01, "nesterov": True}),
        ("sgd", "dampening_weight_decay", sgd, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
        ("adamw", "defaults", adamw, {}), ("adamw", "large", adamw, {"lr": 0.1, "weight_decay": 0.1}),
        ("adamw", "betas", adamw, {"lr": 0.05, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.0}),
        ("adam", "defaults", adam, {}), ("adam", "large", adam, {"lr": 0.1}), ("adam", "weight_decay", adam, {"lr": 0.05, "weight_decay": 0.1}),
        ("adam", "betas", adam, {"lr": 0.05, "betas": [0.5, 0.9], "eps": 1e-4}),
        ("sgd", "one_cycle", sgd, {"lr": 0.1, "momentum": 0.9}), ("adamw", "one_cycle", adamw, {"lr": 0.1}),
    ]  # fmt: skip
    cases = []
    for op, label, kind, how in table:
        first = {"weight": draw(label + "/w", (2, 3)), "bias": draw(label + "/b", (2,))}
        params = {k: v.clone().requires_grad_() for k, v in first.items()}
        optimizer = kind(params.values(), foreach=False, **how)
        group = optimizer.param_groups[0]
        keys = ["lr", "momentum", "dampening", "weight_decay", "nesterov"] if kind is sgd else ["lr", "betas", "eps", "weight_decay"]
        attrs = {k: group[k] for k in keys}
        schedule = None
        if label == "one_cycle":
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
            attrs["one_cycle"] = {"max_lr": 0.1, "total_steps": 20, "base_momentum": 0.85, "max_momentum": 0.95}
        steps = []
        for _ in range(20):
            used = {"lr": group["lr"], "momentum": group["momentum"] if kind is sgd else group["betas"][0]}
            optimizer.zero_grad()
            loss = 0.0
            for key, p in params.items():
                centre, curve = draw(f"{key}/centre", p.shape), draw(f"{key}/curve", p.shape, 0.2, 3.0)
                loss = loss + (0.5 * curve * (p - centre) ** 2 + 0.5 * torch.cos(3.0 * p)).sum()
            loss.backward()
            step = {"gradients": tensors((k, p.grad) for k, p in params.items())}
            optimizer.step()
            step["parameters"] = tensors(params.items())
            if schedule:
                step |= used
                schedule.step()
            steps.append(step)
        cases.append({"op": op, "name": f"{op}_{label}", "attrs": attrs, "parameters": tensors(first.items()), "steps": steps})
    write("optimizers", cases)


def schedules():
    """"lr" (and "momentum") hold one number a step, in f64: element k is what step k, counted from 0, uses."""
    table = [
        ("defaults", {"max_lr": 0.1, "total_steps": 1000}, True), ("linear", {"max_lr": 0.1, "total_steps": 1000, "anneal": "linear"}, True),
        ("factors", {"max_lr": 3e-3, "total_steps": 1000, "pct_start": 0.45, "div_factor": 10.0, "final_div_factor": 100.0}, False),
        ("three_phase", {"max_lr": 0.1, "total_steps": 1000, "three_phase": True}, False),
        ("three_phase_linear", {"max_lr": 0.1, "total_steps": 120, "three_phase": True, "anneal": "linear", "pct_start": 0.4}, True),
        ("ten_steps", {"max_lr": 1.0, "total_steps": 10}, True), ("seven_steps_linear", {"max_lr": 1.0, "total_steps": 7, "anneal": "linear"}, True),
        ("rest_of_a_step", {"max_lr": 0.5, "total_steps": 101, "pct_start": 0.333}, True),
    ]  # fmt: skip
    cases = []
    for label, how, with_momentum in table:
        attrs = {"pct_start": 0.3, "anneal": "cos", "div_factor": 25.0, "final_div_factor": 1e4, "three_phase": False} | how
        if with_momentum:
            attrs |= {"base_momentum": 0.85, "max_momentum": 0.95}
        arguments = {"anneal_strategy" if k == "anneal" else k: v for k, v in attrs.items()}
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, cycle_momentum=with_momentum, **arguments)
        rates, momenta = [], []
        for step in range(attrs["total_steps"]):
            rates.append(optimizer.param_groups[0]["lr"])
            momenta.append(optimizer.param_groups[0]["momentum"])
            optimizer.step()
            if step + 1 < attrs["total_steps"]:
                schedule.step()
        made = {"op": "one_cycle", "name": f"one_cycle_{label}", "attrs": attrs, "lr": rates}
        cases.append(made | ({"momentum": momenta} if with_momentum else {}))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    rates = []
    for _ in range(1000):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    cases.append({"op": "constant", "name": "constant", "attrs": {"lr": 0.1}, "lr": rates})
    write("schedules", cases)


class Recorder(torch.Tensor):
    """A tensor that keeps what it was asked to be filled with."""

    def uniform_(self, low, high, **_):
        self.asked = high
        assert low == -high
        return self

    def normal_(self, mean, std, **_):
        self.asked = std
        assert mean == 0
        return self


def initial_values():
    """"spread" is the bound of a uniform rule or the standard deviation of a normal one, in f64: what PyTorch asks its
    generator for. "default_…" are the layers' own rules."""
    shapes = [[5, 3], [512, 784], [1, 1], [8, 3, 3, 3], [6, 2, 5, 3], [16, 1, 3, 3], [4, 7, 9], [2, 3, 2, 2, 2]]
    gains = [("linear", None), ("tanh", None), ("relu", None), ("leaky_relu", 0.2), ("selu", None)]
    cases = []

    def add(op, shape, spread, **attrs):
        name = "_".join([op, "x".join(map(str, shape)), *(str(v) for v in attrs.values())])
        cases.append({"op": op, "name": name, "shape": shape, "attrs": attrs, "spread": spread})

    def blank(shape):
        return torch.Tensor._make_subclass(Recorder, torch.zeros(shape))

    for shape in shapes:
        for op in ("kaiming_uniform", "kaiming_normal"):
            for nonlinearity, slope in gains:
                for mode in ("fan_in", "fan_out"):
                    it = blank(shape)
                    getattr(nn.init, op + "_")(it, a=slope or 0, mode=mode, nonlinearity=nonlinearity)
                    add(op, shape, it.asked, nonlinearity=nonlinearity, slope=slope, mode=mode)
        for op in ("xavier_uniform", "xavier_normal"):
            for gain in (1.0, nn.init.calculate_gain("tanh"), 0.5):
                it = blank(shape)
                getattr(nn.init, op + "_")(it, gain=gain)
                add(op, shape, it.asked, gain=gain)
        it = blank(shape)
        nn.init.kaiming_uniform_(it, a=math.sqrt(5))  # as in Linear and the convolutions
        add("default_weight", shape, it.asked)
    for nonlinearity, slope in gains:
        cases.append({"op": "gain", "name": f"gain_{nonlinearity}", "attrs": {"nonlinearity": nonlinearity, "slope": slope}, "gain": nn.init.calculate_gain(nonlinearity, slope)})
    # The bias' bound is computed inside of reset_parameters, from the weight's fan.
    asked = []
    real = nn.init.uniform_
    for label, module in {"linear": nn.Linear(7, 3), "conv2d": nn.Conv2d(4, 6, (3, 5), groups=2)}.items():
        nn.init.uniform_ = lambda t, low, high: asked.append(high)
        module.reset_parameters()
        nn.init.uniform_ = real
        cases.append({"op": "default_bias", "name": f"default_bias_{label}", "shape": list(module.weight.shape), "attrs": {}, "spread": asked[-1]})
    write("initial_values", cases)


class Net(nn.Module):
    """3x8x8 pictures in, 5 classes out. The names of its parameters are those of the file."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, stride=2))
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.features(x)))
        return self.head(x.flatten(1))


def weights():
    """net.safetensors is the state dict of `Net` after a few training steps (so that its running statistics are not
    the initial ones); net.json holds an input and the logits in evaluation mode."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for i in range(5):
        optimizer.zero_grad()
        F.cross_entropy(net(draw(f"net/{i}", (8, 3, 8, 8))), labels(f"net/{i}", (8,), 5)).backward()
        optimizer.step()
    net.eval()
    safetensors.torch.save_file(net.state_dict(), FOLDER / "net.safetensors", metadata={"format": "pt"})
    (FOLDER / "net.safetensors").chmod(0o644)
    x = draw("net/x", (2, 3, 8, 8))
    state = {k: {"dtype": {torch.float32: "f32", torch.int64: "i64"}[v.dtype], "shape": list(v.shape)} for k, v in net.state_dict().items()}
    with torch.no_grad():
        write("net", [{"op": "net", "name": "net", "state": state, "inputs": [tensor(x)], "outputs": [tensor(net(x))]}])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for part in (layers, batch_norm, attention, autocast, activations, losses, optimizers, schedules, initial_values, weights):
        part()
