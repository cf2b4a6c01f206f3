"""Rotary positions and linear biases, with Hugging Face's transformers. `generate.py` runs it."""

import torch
import transformers
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as interleaved
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from common import case, draw, MADE_WITH, tensor, write


def positions():
    """Queries [batch, heads, length, width] rotated at the positions of "positions" [batch, length]."""
    MADE_WITH["transformers"] = transformers.__version__
    cases = []
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 4.0, "beta_slow": 1.0, "attention_factor": 1.25, "truncate": True}
    for label, shape, how in [
        ("plain", (2, 2, 3, 4), {}), ("theta", (1, 1, 4, 8), {"theta": 500.0}), ("linear", (1, 2, 3, 6), {"scaling": {"rope_type": "linear", "factor": 4.0}}),
        ("llama3", (1, 1, 3, 16), {"theta": 100.0, "scaling": llama3}), ("interleaved", (2, 2, 3, 4), {"interleaved": True}),
        ("part", (1, 2, 3, 6), {"interleaved": True, "width": 4}),
        ("yarn", (1, 2, 3, 16), {"theta": 100.0, "scaling": yarn}),
    ]:  # fmt: skip
        name = f"rotary_{label}"
        width = how.get("width", shape[-1])
        at = torch.arange(shape[2])[None] + torch.tensor([[0], [5]])[: shape[0]]
        theta = how.get("theta", 10000.0)
        parameters = {"rope_type": "default", "rope_theta": theta} | how.get("scaling", {})
        config = LlamaConfig(head_dim=width, hidden_size=width, num_attention_heads=1, max_position_embeddings=64, rope_parameters=parameters)
        cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), at)

        def run(x):
            if "interleaved" not in how:
                return apply_rotary_pos_emb(x, x, cos, sin)[0]
            half = width // 2
            # This one takes [batch, length, heads, width].
            turned = interleaved(x[..., :width].transpose(1, 2), sin[..., :half], cos[..., :half]).transpose(1, 2)
            return torch.cat([turned, x[..., width:]], -1)

        attrs = {"width": width, "theta": theta, "scaling": how.get("scaling"), "interleaved": "interleaved" in how, "positions": tensor(at)}
        cases.append(case("rotary", name, run, draw(name, shape), **attrs))
    for heads in (8, 12, 1):
        # Its rows count keys from 0; beside a query at i they differ from ours by a constant, which a softmax removes.
        bias = build_alibi_tensor(torch.ones(1, 5, dtype=torch.long), heads, torch.float32).reshape(heads, 5)
        cases.append({"op": "alibi", "name": f"alibi_{heads}", "attrs": {"heads": heads}, "outputs": [tensor(bias)]})
    write("positions", cases)
    del MADE_WITH["transformers"]  # the other files are made without
