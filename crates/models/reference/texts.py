"""Tiny random models of texts as transformers writes them, and what they give: the folders beside this file.

    pip install torch==2.15.0 transformers==5.23.0 peft==0.21.2 && python texts.py

Each folder has the model, as `from_pretrained` reads it, and `expected.safetensors`: inputs, logits, generated tokens. The
other way, folders that `cargo test -p fulmen-models -- --ignored saved` wrote are compared with

    python texts.py check FOLDER
"""

import json
import shutil
import sys
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
VOCABULARY = 40


def settle(model, seed):
    """Random values that are large enough for tokens to differ."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if "embed_positions" in name and not parameter.requires_grad:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name.lower() or ".ln_" in name:
            parameter.data += 0.2 * noise
        else:
            parameter.data = noise * (0.2 if parameter.dim() == 1 else 2.0 * parameter.shape[-1] ** -0.5)
    return model.eval()


def ids(seed, batch=2, length=7):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def save(folder, values):
    values = {key: (value.int() if value.dtype == torch.int64 else value.float()).contiguous() for key, value in values.items()}
    save_file(values, folder / "expected.safetensors")


def write(name, model, values, **how):
    """The folder NAME: the model, then inputs and outputs."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **how)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save(folder, values)
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def as_bin(folder, prefix=""):
    """The weights as `torch.save` writes them, under names that begin with `prefix`."""
    weights = {prefix + name: value for name, value in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")


def decoded(model, seed, padded=False, beams=None, **given):
    """Logits of two sequences and 32 greedy tokens; of a prompt that is padded, until one ends; of a beam search. A model
    with an encoder is `given` what that reads."""
    tokens = ids(seed)
    prompt = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if given:
        # transformers puts the first token of decoders in front of another.
        tokens[:, 0] = 0
        prompt = given | {"decoder_input_ids": tokens}
    config = model.generation_config
    config.eos_token_id = config.pad_token_id = config.bos_token_id = None
    plain, length = dict(do_sample=False, use_cache=True), tokens.shape[1]
    greedy = model.generate(**prompt, max_new_tokens=32, **plain)[:, length:]
    values = given | {"ids": tokens, "logits": model(**prompt).logits, "greedy": greedy}
    # A token that the first greedy search finds early.
    end = int(greedy[0, 4])
    ending = dict(max_new_tokens=8, eos_token_id=end, pad_token_id=1, **plain)

    def found(**how):
        tail = model.generate(**prompt | how, **ending)[:, length:]
        return torch.nn.functional.pad(tail, (0, 8 - tail.shape[1]), value=1)

    values["end"] = torch.tensor([end])
    if padded:
        some = torch.ones_like(tokens)
        some[1, :3] = 0
        values["padded"] = found(attention_mask=some)
    if beams is not None:
        values["beams"] = found(num_beams=3, **beams)
    return values


def restricted(model, found, **given):
    """Tokens where one is forbidden and the last is forced, as `opus-mt` folders ask for: greedy, by beams, and by beams whose
    probabilities are made to sum to 1 again. The forbidden one is what the beams found first."""
    prompt = given | {"decoder_input_ids": found["ids"]}
    bad, end = int(found["beams"][0, 0]), int(found["end"])
    how = dict(do_sample=False, max_new_tokens=6, bad_words_ids=[[bad]], forced_eos_token_id=end, eos_token_id=None, pad_token_id=1)
    values = {"bad": torch.tensor([bad])}
    for name, more in {"restricted": {}, "restricted_beams": dict(num_beams=3), "renormalized_beams": dict(num_beams=3, renormalize_logits=True)}.items():
        values[name] = model.generate(**prompt, **how, **more)[:, found["ids"].shape[1]:]
        assert (values[name][:, 5] == end).all() and not (values[name] == bad).any()
    return values


def gpt2():
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=48, n_embd=16, n_layer=1, n_head=4)
    model = settle(transformers.GPT2LMHeadModel(config), 0)
    write("gpt2", model, decoded(model, 1, padded=True, beams={}), max_shard_size="10KB")


def small(config, **more):
    """A config of one layer, or of as many as it says."""
    sizes = dict(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    return config(**{**sizes, **more})


def llama():
    """Llama 3: scaled rotations, grouped queries, a head of its own. The weights are bf16."""
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    model = settle(transformers.LlamaForCausalLM(small(transformers.LlamaConfig, rope_parameters=rope)), 2).bfloat16()
    # Read again, because `bfloat16()` rounds the angles too.
    folder = write("llama", model, {})
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    save(folder, decoded(model, 3, padded=True))


def qwen2():
    """Biases of queries, keys and values."""
    model = settle(transformers.Qwen2ForCausalLM(small(transformers.Qwen2Config)), 14)
    write("qwen2", model, decoded(model, 15))


def qwen3():
    """Normalized queries and keys, a tied head; as downloaded folders say it, with `rope_theta` apart."""
    model = settle(transformers.Qwen3ForCausalLM(small(transformers.Qwen3Config, head_dim=8, tie_word_embeddings=True)), 4)
    folder = write("qwen3", model, decoded(model, 5))
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    config |= {"rope_theta": 10000.0, "rope_scaling": None}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def mistral():
    """A sliding window. The weights are a pickle of a wrapped model."""
    model = settle(transformers.MistralForCausalLM(small(transformers.MistralConfig, head_dim=4, sliding_window=4)), 6)
    as_bin(write("mistral", model, decoded(model, 7)), "module.")


def gemma():
    """The first Gemma: normalizations by 1 + weight, scaled embeddings."""
    model = settle(transformers.GemmaForCausalLM(small(transformers.GemmaConfig, head_dim=8)), 8)
    write("gemma", model, decoded(model, 9))


def gemma2():
    """Logits between bounds, four normalizations, every other layer with a sliding window."""
    config = small(transformers.Gemma2Config, num_hidden_layers=2, head_dim=8, sliding_window=4, query_pre_attn_scalar=6, attn_logit_softcapping=3.0, final_logit_softcapping=4.0)
    model = settle(transformers.Gemma2ForCausalLM._from_config(config, attn_implementation="eager"), 10)
    write("gemma2", model, decoded(model, 11))


def gemma3():
    """Normalized queries and keys, and rotations of their own for the layers with a sliding window."""
    kinds = ["sliding_attention", "full_attention"]
    rope = {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0}, "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}
    config = small(transformers.Gemma3TextConfig, num_hidden_layers=2, head_dim=8, sliding_window=4, query_pre_attn_scalar=6, layer_types=kinds, rope_parameters=rope)
    model = settle(transformers.Gemma3ForCausalLM(config), 12)
    write("gemma3", model, decoded(model, 13))


def routed(name, model, seed):
    """Also the gradients of a loss with the one that balances experts, in f64, under the names of the folder."""
    values = decoded(model, seed)
    tokens = values["ids"]
    # Their fast products have no f64.
    model.config._experts_implementation = "eager"
    model = model.double()
    with torch.enable_grad():
        found = model(tokens, labels=tokens, output_router_logits=True)
        values |= {"loss": found.loss.detach().float(), "balance": found.aux_loss.detach().float()}
        found.loss.backward()
    weights = {}
    for key, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        weights[f"gradient.{key}"] = gradient.float()
    write(name, model.float(), values | weights)


def mixtral():
    """Two of four experts. As all layers with experts, its file has a matrix for each expert."""
    sizes = dict(num_hidden_layers=2, num_local_experts=4, intermediate_size=12, router_aux_loss_coef=0.1)
    routed("mixtral", settle(transformers.MixtralForCausalLM(small(transformers.MixtralConfig, **sizes)), 40), 41)


def qwen2_moe():
    """Weights of experts as the softmax gives them, a network that all tokens use, and a layer without experts. The file is a
    pickle of transformers' own form, which has one tensor for all experts."""
    sizes = dict(num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=8, mlp_only_layers=[0], router_aux_loss_coef=0.1)
    model = settle(transformers.Qwen2MoeForCausalLM(small(transformers.Qwen2MoeConfig, **sizes)), 42)
    routed("qwen2_moe", model, 43)
    folder = HERE / "qwen2_moe"
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def qwen3_moe():
    """Many experts, every other layer."""
    sizes = dict(num_hidden_layers=2, head_dim=4, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=8, norm_topk_prob=True, decoder_sparse_step=2, router_aux_loss_coef=0.1)
    routed("qwen3_moe", settle(transformers.Qwen3MoeForCausalLM(small(transformers.Qwen3MoeConfig, **sizes)), 44), 45)


def dots1():
    """DeepSeek-V3's experts: sigmoid scores with a bias, groups, a shared expert; the first layer has none."""
    sizes = dict(num_hidden_layers=2, head_dim=4, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=8, norm_topk_prob=True, n_group=4, topk_group=2, routed_scaling_factor=2.5, first_k_dense_replace=1)
    model = settle(transformers.Dots1ForCausalLM(small(transformers.Dots1Config, **sizes)), 46)
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.data = 0.3 * torch.randn(8, generator=torch.Generator().manual_seed(47))
    write("dots1", model, decoded(model, 48))


def glm4_moe():
    """GLM-4.5: half of the features of queries and keys are rotated, with YaRN; dots.llm1's experts; biases of queries, keys and
    values, but not of the output."""
    rope = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16, "partial_rotary_factor": 0.5}
    sizes = dict(num_hidden_layers=2, head_dim=16, attention_bias=True, use_qk_norm=True, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, routed_scaling_factor=2.5, rope_parameters=rope)
    model = settle(transformers.Glm4MoeForCausalLM(small(transformers.Glm4MoeConfig, **sizes)), 49)
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.data = 0.3 * torch.randn(4, generator=torch.Generator().manual_seed(50))
    write("glm4_moe", model, decoded(model, 51))


def with_gradients(model, values):
    """Also the loss and the gradients of attention and routers in f64, under the names of the folder. `values` are those of the
    model in f32."""
    # Their fast products have no f64.
    model.config._experts_implementation = "eager"
    model = model.double()
    with torch.enable_grad():
        loss = model(values["ids"], labels=values["ids"]).loss
        loss.backward()
    weights = {name: weight.grad.float() for name, weight in model.named_parameters() if "self_attn" in name or "mlp.gate." in name}
    model.float()
    return values | {"loss": loss.detach().float()} | {f"gradient.{name}": gradient for name, gradient in weights.items()}


LATENT = dict(num_hidden_layers=2, num_key_value_heads=4, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, first_k_dense_replace=1, moe_intermediate_size=8)


def deepseek_yarn(**more):
    return {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4, "beta_slow": 1} | more


def deepseek_v2():
    """Attention from latent features, also of queries; groups of experts by their best one; YaRN with two different factors."""
    sizes = dict(q_lora_rank=6, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=2.5)
    rope = deepseek_yarn(mscale=0.5, mscale_all_dim=1.0)
    model = settle(transformers.DeepseekV2ForCausalLM(small(transformers.DeepseekV2Config, **LATENT | sizes, rope_parameters=rope)), 52)
    write("deepseek_v2", model, with_gradients(model, decoded(model, 53, padded=True, beams={})))


def deepseek_v2_lite():
    """As the smaller one: queries without latent features, and experts without groups. As downloaded folders say it, with
    `rope_theta` apart and keys that only DeepSeek's own code reads."""
    sizes = dict(q_lora_rank=None, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2)
    rope = deepseek_yarn(mscale=0.707, mscale_all_dim=0.707)
    model = settle(transformers.DeepseekV2ForCausalLM(small(transformers.DeepseekV2Config, **LATENT | sizes, rope_parameters=rope)), 54)
    folder = write("deepseek_v2_lite", model, decoded(model, 55))
    config = json.loads((folder / "config.json").read_text())
    theta = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    for key in ["rope_parameters", "head_dim", "qk_head_dim"]:
        config.pop(key, None)
    own = {"n_group": 1, "topk_group": 1, "scoring_func": "softmax", "moe_layer_freq": 1, "ep_size": 1, "aux_loss_alpha": 0.001, "seq_aux": True}
    config |= {"q_lora_rank": None, "rope_theta": theta, "rope_scaling": {"type": kind} | rope} | own
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def deepseek_v3():
    """V2's attention with biases, and sigmoid scores with a bias in groups."""
    sizes = dict(q_lora_rank=6, attention_bias=True, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2)
    rope = deepseek_yarn(mscale=1.0, mscale_all_dim=1.0)
    model = settle(transformers.DeepseekV3ForCausalLM(small(transformers.DeepseekV3Config, **LATENT | sizes, rope_parameters=rope)), 56)
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.data = 0.3 * torch.randn(8, generator=torch.Generator().manual_seed(57))
    write("deepseek_v3", model, with_gradients(model, decoded(model, 58)))


def encoder(config, **more):
    sizes = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24, max_position_embeddings=12)
    return config(**{**sizes, **more})


def encoded(model, padding, kinds):
    """The logits of two sequences, of which the second has padding behind it."""
    tokens, mask = ids(21), torch.ones(2, 7, dtype=torch.int64)
    tokens[1, 4:], mask[1, 4:] = padding, 0
    values = {"input_ids": tokens, "attention_mask": mask}
    if kinds:
        values["token_type_ids"] = (torch.arange(7) > 3).long().repeat(2, 1)
    return values | {"logits": model(**values).logits}


def bert():
    """A pickle, whose normalizations have the names that BERT's first files have."""
    model = settle(transformers.BertForMaskedLM(encoder(transformers.BertConfig)), 16)
    folder = write("bert", model, encoded(model, 0, kinds=True))
    as_bin(folder)
    weights = torch.load(folder / "pytorch_model.bin")
    old = lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    torch.save({old(name): value for name, value in weights.items()}, folder / "pytorch_model.bin")
    model = settle(transformers.BertForSequenceClassification(encoder(transformers.BertConfig, num_labels=3)), 17)
    write("bert-classifier", model, encoded(model, 0, kinds=True))


def roberta():
    more = dict(type_vocab_size=1, layer_norm_eps=1e-5)
    model = settle(transformers.RobertaForMaskedLM(encoder(transformers.RobertaConfig, **more)), 18)
    write("roberta", model, encoded(model, 1, kinds=False))
    model = settle(transformers.RobertaForSequenceClassification(encoder(transformers.RobertaConfig, num_labels=3, **more)), 19)
    write("roberta-classifier", model, encoded(model, 1, kinds=False))


def adapter(name, model, base, seed, **how):
    """An adapter for the model in the folder `base`, as peft writes it; what it trains is random."""
    model = model.from_pretrained(HERE / base).eval()
    tokens = ids(22)
    values = {"input_ids": tokens, "base": model(tokens).logits}
    model = peft.get_peft_model(model, peft.LoraConfig(**how)).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter_name, parameter in model.named_parameters():
        if "lora" in parameter_name or "modules_to_save" in parameter_name:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    folder = write(name, model, values | {"logits": model(tokens).logits})
    (folder / "README.md").unlink()
    # The folder of the base is not the same everywhere.
    file = folder / "adapter_config.json"
    same = {"base_model_name_or_path": base, "target_modules": how["target_modules"]}
    file.write_text(json.dumps(json.loads(file.read_text()) | same, indent=2, sort_keys=True) + "\n")


def lora():
    """Of a GPT-2, and of a RoBERTa whose classifier is trained whole."""
    adapter("gpt2-lora", transformers.GPT2LMHeadModel, "gpt2", 23, r=2, lora_alpha=6, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    classifier = transformers.RobertaForSequenceClassification
    adapter("roberta-lora", classifier, "roberta-classifier", 35, r=2, lora_alpha=6, target_modules=["query"], modules_to_save=["classifier"])


def t5():
    """Few and short ranges of distances, so that all occur; two blocks, which share them."""
    sizes = dict(vocab_size=VOCABULARY, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4, relative_attention_num_buckets=8, relative_attention_max_distance=20, decoder_start_token_id=0)
    model = settle(transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes | {"num_layers": 2})), 24)
    tokens, mask = ids(25, length=9), torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    write("t5", model, decoded(model, 26, beams={}, input_ids=tokens, attention_mask=mask))
    # T5 1.1, with a head of its own.
    config = transformers.T5Config(feed_forward_proj="gated-gelu", tie_word_embeddings=False, **sizes)
    model = transformers.T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(VOCABULARY, 16))
    settle(model, 27)
    values = {"input_ids": tokens, "decoder_input_ids": ids(28)}
    folder = write("t5-gated", model, values | {"logits": model(**values).logits})
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    del config["scale_decoder_outputs"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def marian():
    """Two layers each, with one embedding and a bias of the logits; and one with two vocabularies."""
    sizes = dict(d_model=16, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=24, decoder_ffn_dim=20, encoder_attention_heads=4, decoder_attention_heads=2, max_position_embeddings=48)
    tokens = dict(vocab_size=VOCABULARY, decoder_start_token_id=0, pad_token_id=1, eos_token_id=None, forced_eos_token_id=None)
    config = transformers.MarianConfig(**sizes, **tokens, scale_embedding=True, activation_function="relu")
    model = settle(transformers.MarianMTModel(config), 29)
    model.final_logits_bias.data = 0.5 * torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(30))
    read, mask = ids(31, length=9), torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    values = decoded(model, 32, beams={}, input_ids=read, attention_mask=mask)
    values |= restricted(model, values, input_ids=read, attention_mask=mask)
    write("marian", model, values | {"decoder_input_ids": ids(34)})
    sizes |= dict(encoder_layers=1, decoder_layers=1)
    config = transformers.MarianConfig(**sizes, **tokens, decoder_vocab_size=VOCABULARY + 5, share_encoder_decoder_embeddings=False, activation_function="swish")
    model = settle(transformers.MarianMTModel(config), 33)
    values = {"input_ids": read, "decoder_input_ids": ids(34)}
    labels = ids(35)
    labels[1, 4:] = -100
    more = {"labels": labels, "loss": model(read, labels=labels).loss}
    write("marian-two", model, values | more | {"logits": model(**values).logits})


def marian_padding():
    """As an `opus-mt` folder says it: the decoder starts with the padding token, which is the last one and is never generated. Its
    bias is so large that nothing else would come. Its row gets a gradient as a weight of the head, but none where it is read."""
    padding = VOCABULARY - 1
    sizes = dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=24, decoder_ffn_dim=20, encoder_attention_heads=4, decoder_attention_heads=2, max_position_embeddings=48)
    tokens = dict(vocab_size=VOCABULARY, decoder_start_token_id=padding, pad_token_id=padding, eos_token_id=0, forced_eos_token_id=0)
    model = settle(transformers.MarianMTModel(transformers.MarianConfig(**sizes, **tokens, scale_embedding=True, activation_function="swish")), 36)
    model.final_logits_bias.data = 0.5 * torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(37))
    model.final_logits_bias.data[0, padding] = 20.0
    read, mask, labels = ids(38, length=9) - 1, torch.ones(2, 9, dtype=torch.int64), ids(39) - 1
    read[1, 5:], mask[1, 5:] = padding, 0
    # The decoder reads the padding token where a label is ignored: in front, in the middle and at the end.
    labels[0, :2] = labels[0, 4] = labels[1, 5:] = -100
    values = {"input_ids": read, "attention_mask": mask, "labels": labels}
    with torch.enable_grad():
        found = model(**values)
        found.loss.backward()
    values |= {"logits": found.logits.detach(), "loss": found.loss.detach(), "gradient": model.model.shared.weight.grad}
    settings = dict(bos_token_id=0, decoder_start_token_id=padding, eos_token_id=0, forced_eos_token_id=0, max_length=9, pad_token_id=padding, renormalize_logits=True)
    prompt = {"input_ids": read, "attention_mask": mask}
    for beams, name in [(1, "greedy"), (3, "beams")]:
        how = settings | {"num_beams": beams}
        assert (model.generate(**prompt, generation_config=transformers.GenerationConfig(**how))[:, 1:-1] == padding).all()
        found = model.generate(**prompt, generation_config=transformers.GenerationConfig(**how, bad_words_ids=[[padding]]))[:, 1:]
        values[name] = torch.nn.functional.pad(found, (0, 8 - found.shape[1]), value=padding)
    folder = write("marian-padding", model, values)
    text = json.dumps(settings | {"num_beams": 3, "bad_words_ids": [[padding]]}, indent=2, sort_keys=True)
    (folder / "generation_config.json").write_text(text + "\n")


FAMILIES = [gpt2, llama, qwen2, qwen3, mistral, gemma, gemma2, gemma3, mixtral, qwen2_moe, qwen3_moe, dots1, glm4_moe, deepseek_v2, deepseek_v2_lite, deepseek_v3, bert, roberta, lora, t5, marian, marian_padding]


def check(folder):
    """Whether transformers gives the logits that stand in `expected.safetensors` of a folder which Rust saved."""
    config = json.loads((folder / "config.json").read_text())
    model = getattr(transformers, config["architectures"][0]).from_pretrained(folder).eval()
    expected = load_file(folder / "expected.safetensors")
    inputs = {name: value.long() for name, value in expected.items() if name != "logits"}
    logits = model(**inputs).logits
    off = ((logits - expected["logits"]).abs().max() / expected["logits"].abs().max()).item()
    print(f"{folder.name}: {config['architectures'][0]}, off by {off:.1e} of the largest logit")
    return off < 1e-4


if __name__ == "__main__":
    with torch.no_grad():
        if sys.argv[1:2] == ["check"]:
            sys.exit(not all([check(folder) for folder in sorted(Path(sys.argv[2]).iterdir())]))
        for family in FAMILIES:
            family()
    for path in sorted(HERE.glob("*/*")):
        print(path.relative_to(HERE), path.stat().st_size)
