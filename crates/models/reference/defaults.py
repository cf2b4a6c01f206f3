"""What transformers makes of configs that have only the sizes, so that the defaults of the family's configuration class count,
and of configs with one more key. Writes the folder `defaults` beside this file:

- `classes.json`: the defaults of each configuration class.
- `cases.json`: the configs, each with the file that has its weights.
- `NAME.safetensors`: weights.
- `expected.safetensors`: inputs, and the logits of each case under its name; and those of two texts, the second of which is masked
  as a whole.

    pip install torch==2.15.0 transformers==5.24.0 && python defaults.py
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from texts import VOCABULARY, ids, settle

FOLDER = Path(__file__).parent / "defaults"

DECODER = dict(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
ENCODER = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24, max_position_embeddings=12)
DEEPSEEK = DECODER | dict(num_key_value_heads=4, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, q_lora_rank=6, moe_intermediate_size=8)
DEEPSEEK.pop("head_dim")
T5 = dict(vocab_size=VOCABULARY, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4)
MARIAN = dict(vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=24, decoder_ffn_dim=20, encoder_attention_heads=4, decoder_attention_heads=2, pad_token_id=1)
VIT = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24, image_size=12, patch_size=4)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 6, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False}

# By name: the class, the `model_type`, and the sizes.
BASES = {
    "llama": (transformers.LlamaForCausalLM, "llama", DECODER),
    "mistral": (transformers.MistralForCausalLM, "mistral", DECODER),
    "qwen2": (transformers.Qwen2ForCausalLM, "qwen2", DECODER),
    "qwen3": (transformers.Qwen3ForCausalLM, "qwen3", DECODER),
    "gemma": (transformers.GemmaForCausalLM, "gemma", DECODER),
    "gemma2": (transformers.Gemma2ForCausalLM, "gemma2", DECODER),
    "gemma3": (transformers.Gemma3ForCausalLM, "gemma3_text", DECODER),
    "gpt2": (transformers.GPT2LMHeadModel, "gpt2", dict(vocab_size=VOCABULARY, n_positions=12, n_embd=16, n_layer=1, n_head=4)),
    "bert": (transformers.BertForSequenceClassification, "bert", ENCODER),
    "roberta": (transformers.RobertaForSequenceClassification, "roberta", ENCODER),
    "t5": (transformers.T5ForConditionalGeneration, "t5", T5),
    "marian": (transformers.MarianMTModel, "marian", MARIAN),
    "vit": (transformers.ViTForImageClassification, "vit", VIT),
    "convnext": (transformers.ConvNextForImageClassification, "convnext", dict(hidden_sizes=[4, 6, 8, 10], depths=[1, 1, 1, 1])),
}

# Behind the others, whose seeds are their numbers.
LATER_BASES = {
    "deepseek_v2": (transformers.DeepseekV2ForCausalLM, "deepseek_v2", DEEPSEEK | dict(n_routed_experts=8, num_experts_per_tok=2)),
    "deepseek_v3": (transformers.DeepseekV3ForCausalLM, "deepseek_v3", DEEPSEEK | dict(n_routed_experts=16, num_hidden_layers=4)),
}
ALL_BASES = BASES | LATER_BASES

# By name: the base, and keys that are added to its config.
MORE = {
    "llama scaled": ("llama", {"rope_theta": 500.0, "rope_scaling": LLAMA3}),
    "llama scaled twice": ("llama", {"rope_scaling": {"type": "linear", "factor": 4}, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    "mistral window": ("mistral", {"sliding_window": 3}),
    "mistral layer types": ("mistral", {"sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]}),
    "qwen2 window": ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    "qwen2 late window": ("qwen2", {"use_sliding_window": True, "sliding_window": 3}),
    "qwen2 no window": ("qwen2", {"sliding_window": 3, "max_window_layers": 0}),
    "qwen3 old theta": ("qwen3", {"rope_theta": 50.0, "rope_scaling": None}),
    "gemma gelu": ("gemma", {"hidden_act": "gelu", "hidden_activation": None}),
    "gemma2 window": ("gemma2", {"sliding_window": 3, "hidden_act": "relu"}),
    "gemma2 unbounded": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2 bounded": ("gemma2", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3 window": ("gemma3", {"sliding_window": 3}),
    "gemma3 pattern": ("gemma3", {"sliding_window": 3, "sliding_window_pattern": 2}),
    "gemma3 bound": ("gemma3", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3 old angles": ("gemma3", {"sliding_window_pattern": 2, "rope_theta": 900.0, "rope_local_base_freq": 40.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "gemma3 angles of one": ("gemma3", {"sliding_window_pattern": 2, "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0}}}),
    "gpt2 aliases": ("gpt2", {"n_embd": None, "n_head": None, "hidden_size": 16, "num_attention_heads": 2}),
    "bert three classes": ("bert", {"num_labels": 3}),
    "t5 gated": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    # Behind the others, whose seeds are their numbers.
    "llama yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 32}}),
    "qwen3 old yarn": ("qwen3", {"rope_theta": 100.0, "rope_scaling": YARN}),
    "gemma3 yarn of one": ("gemma3", {"sliding_window_pattern": 2, "rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 300.0, "factor": 2.0, "original_max_position_embeddings": 64}}}),
}

LATER = {name: (name, {}) for name in LATER_BASES} | {
    "deepseek_v2 groups": ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 1}),
    "deepseek_v2 yarn": ("deepseek_v2", {"rope_theta": 100.0, "rope_scaling": YARN}),
    "deepseek_v3 halves": ("deepseek_v3", {"rope_interleave": False}),
    "deepseek_v3 linear": ("deepseek_v3", {"rope_scaling": {"type": "linear", "factor": 4.0, "mscale_all_dim": 1.0}}),
}


def load(model_class, config, attention):
    """The model of a config that is read from a file, as those of users are."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        config = transformers.AutoConfig.from_pretrained(folder)
    model_class = {"ministral": transformers.MinistralForCausalLM}.get(config.model_type, model_class)
    return model_class._from_config(config, attn_implementation=attention).eval()


def forward(model, inputs):
    if model.main_input_name == "pixel_values":
        return model(inputs["large" if model.config.model_type == "convnext" else "pixel_values"]).logits
    if model.config.is_encoder_decoder:
        return model(inputs["input_ids"], decoder_input_ids=inputs["decoder_input_ids"]).logits
    return model(inputs["input_ids"]).logits


def larger_scores(model):
    """Queries that are large enough for bounds of scores to show."""
    for name, parameter in model.named_parameters():
        if "q_proj.weight" in name:
            parameter.data *= 8
    return model


def weights(model):
    """The weights as they are saved, so without those that are tied."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return (Path(folder) / "model.safetensors").read_bytes()


def write():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    generator = torch.Generator().manual_seed(50)
    inputs = {"input_ids": ids(51), "decoder_input_ids": ids(52)}
    inputs |= {"pixel_values": torch.rand(2, 3, 12, 12, generator=generator) - 0.5, "large": torch.rand(1, 3, 32, 32, generator=generator) - 0.5}
    cases, expected, classes = {}, {}, {}
    all_cases = {name: (name, {}) for name in BASES} | MORE | LATER
    for number, (name, (base, more)) in enumerate(all_cases.items()):
        model_class, model_type, sizes = ALL_BASES[base]
        config = {"model_type": model_type} | sizes | more
        config = {key: value for key, value in config.items() if value is not None or key not in sizes}
        model = load(model_class, config, "eager")
        if name == "t5 gated":
            # Published ones have a head of their own.
            model.lm_head.weight = torch.nn.Parameter(torch.zeros(VOCABULARY, sizes["d_model"]))
        plain = settle(load(model_class, {"model_type": model_type} | sizes, "eager"), list(ALL_BASES).index(base) + 60)
        larger_scores(plain)
        own = name == "t5 gated" or {key for key, value in model.state_dict().items() if key not in plain.state_dict() or plain.state_dict()[key].shape != value.shape}
        file = base if not own else name.replace(" ", "-")
        if own:
            model = larger_scores(settle(model, number + 80))
        else:
            model.load_state_dict(plain.state_dict())
        if file == name or own:
            (FOLDER / f"{file}.safetensors").write_bytes(weights(model))
        cases[name] = {"config": config, "weights": f"{file}.safetensors"}
        expected[name] = forward(model, inputs).contiguous()
        if not more:
            classes[model_type] = type(model.config)().to_dict()
        elif not own:
            off = ((expected[name] - expected[base]).abs().max() / expected[base].abs().max()).item()
            print(f"{name}: {off:.1e} from {base}")
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, 5:] = 0
    mask[1] = 0
    for base in ["bert", "roberta", "t5", "marian"]:
        model_class, model_type, sizes = BASES[base]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps({"model_type": model_type} | sizes))
            shutil.copy(FOLDER / f"{base}.safetensors", Path(folder) / "model.safetensors")
            model = model_class.from_pretrained(folder).eval()
        more = {"decoder_input_ids": inputs["decoder_input_ids"]} if model.config.is_encoder_decoder else {}
        expected[f"{base} masked"] = model(inputs["input_ids"], attention_mask=mask, **more).logits.contiguous()
        print(base, model.config._attn_implementation)
    inputs["attention_mask"] = mask
    (FOLDER / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
    (FOLDER / "classes.json").write_text(json.dumps(classes, indent=1, sort_keys=True) + "\n")
    inputs = {name: value.int() if value.dtype == torch.int64 else value for name, value in inputs.items()}
    save_file(inputs | expected, FOLDER / "expected.safetensors")


if __name__ == "__main__":
    with torch.no_grad():
        write()
