"""Tables of rotations, as transformers computes them: `rope.json` has for each case the keys of a `config.json`, the angle of each
pair at position 1, and the factor of cosines and sines.

    pip install torch==2.15.0 transformers==5.23.0 && python rope.py
"""

import json
import tempfile
from pathlib import Path

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FILE = Path(__file__).parent / "rope.json"

LLAMA = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 2, "max_position_embeddings": 131072}
GLM = {"model_type": "glm4_moe", "hidden_size": 64, "num_attention_heads": 2, "head_dim": 32, "max_position_embeddings": 4096}
PAPER = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 32.0, "original_max_position_embeddings": 4096}
DEEPSEEK = PAPER | {"factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
PUBLISHED = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}

CASES = [
    LLAMA | {"rope_parameters": PAPER},
    LLAMA | {"rope_parameters": DEEPSEEK},
    LLAMA | {"rope_parameters": DEEPSEEK | {"mscale": 0.707}},
    LLAMA | {"rope_parameters": DEEPSEEK | {"mscale": 0.707, "mscale_all_dim": 0}},
    LLAMA | {"rope_parameters": PAPER | {"attention_factor": 1.25, "mscale": 0.5, "mscale_all_dim": 2.0}},
    LLAMA | {"rope_parameters": PAPER | {"beta_fast": 8, "beta_slow": 2.5}},
    LLAMA | {"rope_parameters": PAPER | {"beta_fast": 0, "beta_slow": None}},
    LLAMA | {"rope_parameters": PAPER | {"truncate": False}},
    LLAMA | {"rope_parameters": PAPER | {"factor": None}},
    LLAMA | {"rope_parameters": PAPER | {"factor": 0.5}},
    # Both ends are the same pair.
    LLAMA | {"rope_parameters": PAPER | {"rope_theta": 500000.0, "beta_fast": 2, "beta_slow": 2, "truncate": False}},
    # All rotations are slow, all are fast, and no length is given.
    LLAMA | {"rope_parameters": PAPER | {"original_max_position_embeddings": 4}},
    LLAMA | {"rope_parameters": PAPER | {"original_max_position_embeddings": 1000000000}},
    LLAMA | {"max_position_embeddings": 512, "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0}},
    LLAMA | {"rope_theta": 1000000.0, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
    GLM,
    GLM | {"partial_rotary_factor": 0.25, "rope_theta": 1000000, "rope_scaling": None},
    GLM | {"partial_rotary_factor": 0.25, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.75}},
    GLM | {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0, "partial_rotary_factor": 1.0}},
    GLM | {"rope_parameters": PAPER | {"original_max_position_embeddings": 1024}},
    # As published.
    {"model_type": "deepseek_v2", "max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling": PUBLISHED | {"mscale": 0.707, "mscale_all_dim": 0.707}},
    {"model_type": "deepseek_v3", "max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling": PUBLISHED},
]


def table(config):
    """The frequencies and the factor, from a file as those of users are."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        read = transformers.AutoConfig.from_pretrained(folder)
    kind = read.rope_parameters["rope_type"]
    embeddings = {"llama": transformers.models.llama.modeling_llama.LlamaRotaryEmbedding, "glm4_moe": transformers.models.glm4_moe.modeling_glm4_moe.Glm4MoeRotaryEmbedding}
    compute = embeddings[read.model_type].compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
    frequencies, factor = compute(read, device=None)
    return {"config": config, "frequencies": frequencies.tolist(), "factor": factor}


FILE.write_text("[\n" + ",\n".join(json.dumps(table(config)) for config in CASES) + "\n]\n")
