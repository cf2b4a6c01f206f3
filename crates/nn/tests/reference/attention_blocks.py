"""Attention with masks of all kinds, with PyTorch: the formula with all scores at once, in f64. `generate.py` runs it."""

import torch

from common import case, draw, rng, tensor, write


def attention_blocks():
    """A window of `w` keys ends at the query. A mask is true where a query sees a key; numbers are added, and are the
    fourth input, as they have a gradient. Queries see only keys with their own segment id."""
    cases = []
    own = [(2, 2, 10, 3)] * 3
    grouped = [(2, 4, 10, 2), (2, 2, 10, 2), (2, 2, 10, 3)]
    cross = [(1, 2, 5, 3), (1, 2, 11, 3), (1, 2, 11, 2)]
    for label, shapes, how in [
        ("causal_wide", cross, {"causal": True, "scale": 0.3}),
        ("window", [(1, 9, 2)] * 3, {"window": 3}),
        ("causal_window", grouped, {"causal": True, "window": 5}),
        ("segments", own, {"causal": True, "segments": [[1] * 3 + [2] * 7, [1] * 4 + [2] * 4 + [0] * 2]}),
        ("softcap", grouped, {"causal": True, "softcap": 1.5}),
        ("mask", grouped, {"mask": (1, 4, 10, 10)}),
        ("padding", [(2, 2, 5, 3), (2, 2, 7, 3), (2, 2, 7, 3)], {"mask": (2, 1, 1, 7)}),
        ("added", grouped, {"causal": True, "added": (4, 10, 10)}),
        ("added_to_keys", grouped, {"softcap": 2.0, "added": (2, 1, 1, 10)}),
        ("added_to_heads", own, {"added": (2, 1, 1)}),
        ("one_head_of_keys", [(2, 3, 6, 2), (2, 1, 6, 2), (2, 1, 6, 2)], {"causal": True}),
    ]:  # fmt: skip
        name = f"attention_blocks_{label}"
        attrs = {key: how[key] for key in ["causal", "window", "scale", "softcap"] if key in how}
        q_len, k_len = shapes[0][-2], shapes[1][-2]
        rows, columns = torch.arange(q_len)[:, None], torch.arange(k_len)
        visible = torch.ones(q_len, k_len, dtype=torch.bool)
        if "causal" in how:
            visible = visible & (columns <= rows)
        if "window" in how:
            visible = visible & (columns > rows - how["window"])
        if "segments" in how:
            ids = torch.tensor(how["segments"])
            attrs["segment_ids"] = tensor(ids)
            visible = visible & (ids[:, None, :, None] == ids[:, None, None, :])
        if "mask" in how:
            mask = torch.tensor(rng(name + "/mask").random(how["mask"]) < 0.6)
            mask[..., 0] = True
            attrs["mask"] = tensor(mask)
            visible = visible & mask

        def run(q, k, v, added=None):
            if q.dim() > 3:
                k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            scores = q.double() @ k.double().transpose(-2, -1) * how.get("scale", q.shape[-1] ** -0.5)
            if "softcap" in how:
                scores = torch.tanh(scores / how["softcap"]) * how["softcap"]
            if added is not None:
                scores = scores + added
            return (scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v.double()).float()

        shapes = shapes + [how["added"]] if "added" in how else shapes
        inputs = [draw(f"{name}/{i}", shape) for i, shape in enumerate(shapes)]
        cases.append(case("attention", name, run, *inputs, **attrs))
    write("attention_blocks", cases)
