"""Transformers, with PyTorch. `generate.py` runs it."""

import torch
import torch.nn.functional as F
from torch import nn

from common import case, draw, fill, tensor, write


def transformer():
    """Without dropout and with few features. "src_seen" and "tgt_seen" are true where there is a token, not padding; the
    target is causal."""
    cases = []
    hidden = torch.ones(3, 3).triu(1) > 0
    seen = torch.tensor([[True] * 4, [True, True, False, False]])
    for label, how in [
        ("plain", {}), ("norm_first", {"norm_first": True, "activation": "gelu"}), ("no_bias", {"bias": False, "layer_norm_eps": 1e-2}),
    ]:  # fmt: skip
        attrs = {"d_model": 4, "nhead": 2, "dim_feedforward": 6, "norm_first": False, "activation": "relu", "bias": True, "layer_norm_eps": 1e-5} | how
        arguments = attrs | {"dropout": 0.0, "batch_first": True}
        name = f"encoder_layer_{label}"
        module = fill(nn.TransformerEncoderLayer(**arguments), name)
        run = lambda x: module(x, src_key_padding_mask=~seen)
        src, parameters = draw(f"{name}/src", (2, 4, 4)), list(module.named_parameters())
        cases.append(case("encoder_layer", name, run, src, parameters=parameters, **attrs, src_seen=tensor(seen)))
        name = f"decoder_layer_{label}"
        module = fill(nn.TransformerDecoderLayer(**arguments), name)
        run = lambda x, m: module(x, m, tgt_mask=hidden, memory_key_padding_mask=~seen)
        inputs, parameters = [draw(f"{name}/tgt", (2, 3, 4)), draw(f"{name}/memory", (2, 4, 4))], list(module.named_parameters())
        cases.append(case("decoder_layer", name, run, *inputs, parameters=parameters, **attrs, src_seen=tensor(seen)))
    sizes = {"d_model": 4, "nhead": 2, "dim_feedforward": 6}
    name = "transformer"
    counts = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    module = fill(nn.Transformer(**sizes, **counts, dropout=0.0, batch_first=True, norm_first=True), name)
    run = lambda s, t: module(s, t, tgt_mask=hidden, src_key_padding_mask=~seen, memory_key_padding_mask=~seen)
    inputs, parameters = [draw(f"{name}/src", (2, 4, 4)), draw(f"{name}/tgt", (2, 3, 4))], list(module.named_parameters())
    cases.append(case("transformer", name, run, *inputs, parameters=parameters, **sizes, **counts, src_seen=tensor(seen)))
    write("transformer", cases)
