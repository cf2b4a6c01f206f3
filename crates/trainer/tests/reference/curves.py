"""The losses of 200 steps of tiny models in transformers and PyTorch: `python3 curves.py`, with torch and transformers.

- `llama`: packed documents, each of which sees only itself, by a mask in eager attention.
- `mixtral`: the cross-entropy and the loss that balances the experts, times `router_aux_loss_coef`. A token whose second
  and third expert have almost the same logit goes to either one by rounding. `mixtral` fails unless the same tokens go
  to the same experts in f64, and with weights that begin `SHIFT` of their value away.
- `dpo`: pairs of answers by the sigmoid loss of Rafailov et al. 2023, with the untrained model as the reference.

The models begin with the weights of `crates/models/reference`, in f32, and train by AdamW. Tokens are computed from integers,
so that a test has the same. curves.json holds the losses. `rounding` is the largest relative difference from the losses
of the same steps with weights and products in f64 (transformers computes norms, softmax and rotations in f32 there, too).
"""

import copy
import json
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers

HERE = Path(__file__).parent
MODELS = HERE.parents[2] / "models" / "reference"
STEPS, GROUPS, WORDS, IGNORED, SHIFT = 200, 4, 40, -100, 1e-6
# The lengths of the documents of a row, in each of which positions begin again.
DOCUMENTS = [40, 25, 57, 13, 60, 31, 44, 30]
LENGTH = sum(DOCUMENTS)


def load(name, dtype):
    folder = MODELS / name
    eager = {"attn_implementation": "eager"}
    if name == "mixtral":
        eager["experts_implementation"] = "eager"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **eager)
    return model.to(dtype).train()


def document(number, length):
    """The tokens of a document, and the token after it."""
    return [(number * 7 + (1 + number % 3) * k + k * k // 9) % WORDS for k in range(length + 1)]


def cross_entropy(logits, labels, reduction="mean"):
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction=reduction)
    return losses.reshape(labels.shape) if reduction == "none" else losses


def train(model, rate, loss):
    """The loss of each step. `loss` gets the number of the group of data."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        value = loss(model, step % GROUPS)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def packed(group):
    """Two rows of documents: ids, labels, the documents' numbers, positions."""
    rows = []
    for row in range(2):
        ids, labels, numbers, positions = [], [], [], []
        for i, length in enumerate(DOCUMENTS):
            tokens = document((group * 2 + row) * len(DOCUMENTS) + i, length)
            ids += tokens[:-1]
            labels += tokens[1:-1] + [IGNORED]
            numbers += [i + 1] * length
            positions += range(length)
        rows.append((ids, labels, numbers, positions))
    return [torch.tensor(field) for field in zip(*rows)]


def llama(dtype):
    def loss(model, group):
        ids, labels, numbers, positions = packed(group)
        sees = (numbers[:, :, None] == numbers[:, None, :]) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        mask = torch.where(sees, 0.0, torch.finfo(torch.float32).min).to(dtype)[:, None]
        return cross_entropy(model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits, labels)

    return train(load("llama", dtype), 3e-3, loss)


def route(model):
    """Trains a Mixtral: the losses, and the two experts of each token of each step."""
    experts = []

    def loss(model, group):
        tokens = torch.tensor([document(4 + group * 8 + row, 16) for row in range(8)])
        found = model(tokens[:, :-1], output_router_logits=True, use_cache=False)
        experts.append(torch.stack([logits.topk(2).indices.sort().values for logits in found.router_logits]))
        return cross_entropy(found.logits, tokens[:, 1:]) + model.config.router_aux_loss_coef * found.aux_loss

    losses = train(model, 5e-4, loss)
    return losses, torch.stack(experts)


def mixtral(dtype):
    torch.manual_seed(0)
    shifted = load("mixtral", torch.float32)
    with torch.no_grad():
        for parameter in shifted.parameters():
            parameter.mul_(1 + SHIFT * torch.randn_like(parameter))
    losses, experts = route(load("mixtral", dtype))
    assert torch.equal(experts, route(shifted)[1]), "a token is between two experts: choose other documents"
    return losses


def pairs(group, answer):
    """Prompts of 4 tokens with answers of 5 to 8: ids and labels."""
    ids, labels = [], []
    for row in range(4):
        number = group * 4 + row
        length = 5 + (number + answer) % 4
        tokens = document(number, 4)[:4] + document(number + 11 * (1 + answer), length)[:length]
        ids.append(tokens + [0] * (12 - len(tokens)))
        labels.append([IGNORED] * 3 + tokens[4:] + [IGNORED] * (13 - len(tokens)))
    return torch.tensor(ids), torch.tensor(labels)


def dpo(dtype, beta=0.1):
    model = load("llama", dtype)
    reference = copy.deepcopy(model).requires_grad_(False)

    def log_prob(model, group, answer):
        ids, labels = pairs(group, answer)
        return -cross_entropy(model(ids, use_cache=False).logits, labels, "none").sum(-1)

    def loss(model, group):
        chosen, rejected = (log_prob(model, group, i) - log_prob(reference, group, i) for i in range(2))
        return -F.logsigmoid(beta * (chosen - rejected)).mean()

    return train(model, 1e-3, loss)


def main():
    torch.set_num_threads(1)
    curves = {"versions": {"torch": torch.__version__, "transformers": transformers.__version__}}
    for name, curve in {"llama": llama, "mixtral": mixtral, "dpo": dpo}.items():
        losses, wide = curve(torch.float32), curve(torch.float64)
        rounding = max(abs(a - b) / abs(b) for a, b in zip(losses, wide))
        curves[name] = {"rounding": float(f"{rounding:.2e}"), "losses": [float(f"{loss:.8g}") for loss in losses]}
        print(f"{name}: from {losses[0]:.4f} to {losses[-1]:.4f}, rounding {rounding:.1e}")
    (HERE / "curves.json").write_text(json.dumps(curves) + "\n")


main()
