"""Normalizations that keep running statistics, with PyTorch. `generate.py` runs it."""

from torch import nn

from common import case, draw, fill, labels, tensor, write


def batch_norm():
    """Three training steps, each with its own input and cotangent and with the running statistics after it; then one
    case of evaluation with those statistics, under "eval"."""
    cases = []
    for label, shape, how in [
        ("plain", (4, 3, 2, 3), {}), ("not_affine", (3, 2, 2, 2), {"affine": False}), ("momentum", (2, 2, 3, 3), {"momentum": 0.3, "eps": 1e-3}),
        ("one_channel", (5, 1, 1, 1), {}), ("untracked", (3, 2, 2, 2), {"track_running_stats": False}),
        ("features", (5, 3), {}), ("length", (2, 3, 4), {"momentum": 0.2}), ("cumulative", (3, 2, 2, 2), {"momentum": None}),
        ("volume", (2, 2, 2, 1, 3), {}),
        ("instance", (2, 3, 4), {}), ("instance_affine", (2, 3, 2, 2), {"affine": True}), ("instance_volume", (2, 1, 2, 2, 2), {"eps": 1e-2}),
        ("instance_tracked", (3, 2, 4), {"affine": True, "track_running_stats": True}),
        ("instance_tracked", (2, 2, 2, 3), {"track_running_stats": True, "momentum": 0.3}), ("instance_one", (2, 3), {"affine": True}),
    ]:  # fmt: skip
        instance = label.startswith("instance")
        channels = shape[0] if label == "instance_one" else shape[1]
        attrs = {"features": channels, "eps": 1e-5, "momentum": 0.1, "affine": not instance, "track_running_stats": not instance} | how
        axes = max(1, len(shape) - 2)
        op = f"{'instance' if instance else 'batch'}_norm{axes}d"
        kind = getattr(nn, f"{'Instance' if instance else 'Batch'}Norm{axes}d")
        name = f"{op}_{label}"
        module = fill(kind(channels, **how), name)
        parameters = list(module.named_parameters())
        steps = []
        for i in range(3):
            x = draw(f"{name}/{i}", shape) * (i + 1) + i
            step = case(op, f"{name}_step_{i}", module, x, parameters=parameters)
            steps.append(step | {"buffers": {k: int(v) if k == "num_batches_tracked" else tensor(v) for k, v in module.named_buffers()}})
        module.eval()
        evaluated = case(op, f"{name}_eval", module, draw(f"{name}/eval", shape), parameters=parameters)
        cases.append({"op": op, "name": name, "attrs": attrs, "steps": steps, "eval": evaluated})
    cases.append(conditional())
    for label, module, shape, how in [
        ("linear", nn.Linear(4, 3), (2, 4), {}), ("steps", nn.Linear(3, 5, bias=False), (3, 3), {"n_power_iterations": 3}),
        ("conv2d", nn.Conv2d(2, 3, 2), (1, 2, 3, 3), {}),
    ]:  # fmt: skip
        cases.append(spectral(label, module, shape, **how))
    write("batch_norm", cases)


class ConditionalBatchNorm2d(nn.Module):
    """The form of Miyato and Koyama (2018): two tables of scales and shifts, a row a class."""

    def __init__(self, features, classes):
        super().__init__()
        self.gammas, self.betas = nn.Embedding(classes, features), nn.Embedding(classes, features)
        self.norm = nn.BatchNorm2d(features, affine=False)

    def forward(self, x, classes):
        gamma, beta = self.gammas(classes)[:, :, None, None], self.betas(classes)[:, :, None, None]
        return gamma * self.norm(x) + beta


def conditional():
    op = name = "conditional_batch_norm2d"
    module = fill(ConditionalBatchNorm2d(3, 4), name)
    parameters = list(module.named_parameters())
    steps = []
    for i in range(3):
        x, classes = draw(f"{name}/{i}", (3, 3, 2, 2)) + i, labels(f"{name}/{i}", (3,), 4)
        step = case(op, f"{name}_step_{i}", module, x, classes, parameters=parameters)
        steps.append(step | {"buffers": {k: int(v) if k == "num_batches_tracked" else tensor(v) for k, v in module.norm.named_buffers()}})
    module.eval()
    evaluated = case(op, f"{name}_eval", module, draw(f"{name}/eval", (3, 3, 2, 2)), labels(f"{name}/eval", (3,), 4), parameters=parameters)
    return {"op": op, "name": name, "attrs": {"features": 3, "classes": 4}, "steps": steps, "eval": evaluated}


def spectral(label, module, shape, **how):
    """With nn.utils.spectral_norm; "first" are u and v before the first step."""
    op, name = f"spectral_norm_{label}", f"spectral_norm_{label}"
    module = fill(nn.utils.spectral_norm(module, **how), name)
    for key, buffer in module.named_buffers():
        value = draw(f"{name}/{key}", buffer.shape)
        buffer.copy_(value / value.norm())
    first = {k: tensor(v) for k, v in module.named_buffers()}
    parameters = list(module.named_parameters())
    steps = []
    for i in range(3):
        step = case(op, f"{name}_step_{i}", module, draw(f"{name}/{i}", shape), parameters=parameters)
        steps.append(step | {"buffers": {k: tensor(v) for k, v in module.named_buffers()}})
    module.eval()
    evaluated = case(op, f"{name}_eval", module, draw(f"{name}/eval", shape), parameters=parameters)
    return {"op": op, "name": name, "attrs": {"n_power_iterations": 1} | how, "first": first, "steps": steps, "eval": evaluated}
