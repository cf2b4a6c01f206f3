"""Attention, with PyTorch. `generate.py` runs it."""

import torch
import torch.nn.functional as F
from torch import nn

from common import case, draw, fill, rng, tensor, write


def attention():
    """The function takes queries, keys and values; the layer takes one input for all three, or three. A mask is true
    where a query sees a key."""
    cases = []
    for label, q, k, v, how in [
        ("plain", (2, 3, 4), (2, 5, 4), (2, 5, 2), {}), ("causal", (2, 2, 4, 3), (2, 2, 4, 3), (2, 2, 4, 3), {"causal": True}),
        ("causal_wide", (3, 2), (5, 2), (5, 2), {"causal": True}), ("scale", (1, 3, 4), (1, 3, 4), (1, 3, 4), {"scale": 0.3}),
        ("mask", (2, 3, 4), (2, 5, 4), (2, 5, 4), {"mask": (3, 5)}), ("padding", (2, 2, 3, 4), (2, 2, 4, 4), (2, 2, 4, 4), {"mask": (2, 1, 1, 4)}),
        ("added", (2, 3, 4), (2, 5, 4), (2, 5, 4), {"added": (2, 3, 5)}),
        ("grouped", (2, 4, 3, 2), (2, 2, 3, 2), (2, 2, 3, 2), {"enable_gqa": True, "causal": True}),
        ("one_head_of_keys", (1, 3, 2, 4), (1, 1, 5, 4), (1, 1, 5, 3), {"enable_gqa": True}),
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
        run = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal="causal" in how, scale=how.get("scale"), enable_gqa="enable_gqa" in how)
        cases.append(case("attention", name, run, *(draw(f"{name}/{i}", shape) for i, shape in enumerate([q, k, v])), **attrs))
    for label, shapes, heads, how in [
        ("self", [(2, 3, 4)], 2, {}), ("self_causal", [(1, 4, 6)], 3, {"causal": True}), ("no_bias", [(2, 2, 4)], 1, {"bias": False}),
        ("cross", [(2, 2, 4), (2, 3, 4), (2, 3, 4)], 2, {}), ("padding", [(2, 4, 4)], 2, {"padding": True}),
        ("own_features", [(2, 2, 4), (2, 3, 3), (2, 3, 5)], 2, {"kdim": 3, "vdim": 5}),
    ]:  # fmt: skip
        name = f"multihead_attention_{label}"
        width = shapes[0][-1]
        module = fill(nn.MultiheadAttention(width, heads, bias=how.get("bias", True), kdim=how.get("kdim"), vdim=how.get("vdim"), batch_first=True), name)
        length = shapes[0][1]
        attrs = {"embed_dim": width, "num_heads": heads, "bias": how.get("bias", True), "causal": how.get("causal", False), "kdim": how.get("kdim"), "vdim": how.get("vdim")}
        hidden = {}
        if "causal" in how:
            hidden["attn_mask"] = torch.ones(length, length).triu(1) > 0
        if "padding" in how:
            seen = torch.tensor([[True] * length, [True] * (length - 2) + [False] * 2])
            attrs["mask"] = tensor(seen[:, None, None, :])
            hidden["key_padding_mask"] = ~seen

        def run(q, k=None, v=None):
            return module(q, q if k is None else k, q if v is None else v, need_weights=False, **hidden)[0]

        def weights(q, k=None, v=None):
            return module(q, q if k is None else k, q if v is None else v, average_attn_weights=False, **hidden)[1]

        inputs = [draw(f"{name}/{i}", shape) for i, shape in enumerate(shapes)]
        made = case("multihead_attention", name, run, *inputs, parameters=list(module.named_parameters()), **attrs)
        cases.append(made | {"weights": tensor(weights(*inputs))})
    write("attention", cases)
