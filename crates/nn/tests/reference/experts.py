"""Mixtures of experts with transformers' modules, in f64: outputs, gradients, and the loss that balances experts.
`generate.py` runs it, with transformers 5.23.0."""

import torch
import transformers
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.dots1.modeling_dots1 import Dots1MoE
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

from common import draw, fill, number, tensor, tensors, write

FEATURES, INNER = 6, 5
SIZES = dict(hidden_size=FEATURES, num_experts_per_tok=2, num_attention_heads=2, num_key_value_heads=2)


def blocks():
    mixtral = transformers.MixtralConfig(intermediate_size=INNER, num_local_experts=4, **SIZES)
    yield "softmax", MixtralSparseMoeBlock(mixtral), {"experts": 4}
    qwen = dict(moe_intermediate_size=INNER, shared_expert_intermediate_size=4, **SIZES)
    config = transformers.Qwen2MoeConfig(num_experts=5, **qwen)
    yield "raw_shared", Qwen2MoeSparseMoeBlock(config), {"experts": 5, "normalize": False, "shared": 4, "gated": True}
    dots = dict(moe_intermediate_size=INNER, n_routed_experts=8, n_shared_experts=1, norm_topk_prob=True, **SIZES)
    config = transformers.Dots1Config(n_group=4, topk_group=2, routed_scaling_factor=2.5, **dots)
    how = {"experts": 8, "sigmoid": True, "groups": [4, 2], "scale": 2.5, "shared": 5, "gated": False}
    yield "sigmoid_groups", Dots1MoE(config), how


def deepseek_v2():
    deepseek = dict(moe_intermediate_size=INNER, n_routed_experts=8, n_shared_experts=1, **SIZES)
    config = transformers.DeepseekV2Config(topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=2.5, **deepseek)
    how = {"experts": 8, "normalize": False, "groups": [4, 2], "scores_per_group": 1, "scale": 2.5, "shared": 5, "gated": False}
    return "best_of_groups", DeepseekV2Moe(config), how


def by_capacity(x, ids, weights, module, places):
    """The same with at most `places` tokens of a sequence for each expert: first choices first."""
    y, dropped = torch.zeros_like(x), 0
    for sequence in range(x.shape[0]):
        used = [0] * module.experts.num_experts
        for choice in range(ids.shape[-1]):
            for token in range(x.shape[1]):
                expert = int(ids[sequence, token, choice])
                used[expert] += 1
                if used[expert] > places:
                    dropped += 1
                    continue
                gate, up = (module.experts.gate_up_proj[expert] @ x[sequence, token]).chunk(2)
                out = module.experts.down_proj[expert] @ (torch.nn.functional.silu(gate) * up)
                y[sequence, token] = y[sequence, token] + out * weights[sequence, token, choice]
    return y, dropped / ids.numel()


def made(name, module, how, capacity=None):
    fill(module, name).double()
    if "sigmoid" in how:
        bias = draw(f"{name}/bias", (how["experts"],), -0.3, 0.3).double()
        module.gate.e_score_correction_bias.copy_(bias)
        how = how | {"bias": [number(v) for v in bias.tolist()]}
    x = draw(f"{name}/x", (2, 9, FEATURES), digits=2).double().requires_grad_()
    logits, weights, ids = module.gate(x)
    dropped = 0.0
    if capacity is None:
        y = module(x.clone())
    else:
        how = how | {"capacity": capacity[0]}
        shape = (2, 9, 2)
        y, dropped = by_capacity(x, ids.view(shape), weights.view(shape), module, capacity[1])
    cotangent = draw(f"{name}/cotangent", y.shape, digits=2)
    balance = load_balancing_loss_func((logits,), how["experts"], 2)
    z = torch.logsumexp(logits, -1).square().mean()
    (y * cotangent).sum().backward()
    gradients = {key: p.grad if p.grad is not None else torch.zeros_like(p) for key, p in module.named_parameters()}
    return {
        "name": name, "how": how, "x": tensor(x.float()), "cotangent": tensor(cotangent), "y": tensor(y.float()),
        "parameters": tensors((key, p.float()) for key, p in module.named_parameters()),
        "x_gradient": tensor(x.grad.float()), "gradients": tensors((key, g.float()) for key, g in gradients.items()),
        "balance": number(balance.item()), "z": number(z.item()), "dropped": dropped,
    }  # fmt: skip


def experts():
    cases = [made(name, module, how) for name, module, how in blocks()]
    config = transformers.MixtralConfig(intermediate_size=INNER, num_local_experts=4, **SIZES)
    # 9 tokens with 2 of 4 experts: 4.5 tokens for each.
    for label, factor, places in [("some", 0.7, 4), ("all", 2.0, 9)]:
        cases.append(made(f"capacity_{label}", MixtralSparseMoeBlock(config), {"experts": 4}, (factor, places)))
    cases.append(made(*deepseek_v2()))
    write("experts", cases, transformers=transformers.__version__)
