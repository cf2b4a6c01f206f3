"""The PyTorch side of the loss curves: writes a model's initial weights and all batches, trains 200 steps in f32 and again in
f64, and prints the losses as one line of JSON.

    python torch_curves.py --workload roberta --folder /tmp/roberta
"""

import argparse
import copy
import json
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402  (transformers reads the environment when it is imported)
import torchvision  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from transformers import MarianConfig, MarianMTModel, RobertaConfig, RobertaForMaskedLM  # noqa: E402

STEPS = 200


def resnet18(folder):
    """Images of 32 x 32: a pattern for each of ten classes, plus noise."""
    batch, lr = 32, 3e-6
    y = torch.randint(10, (STEPS * batch,))
    x = torch.randn(10, 3, 32, 32)[y] + 2 * torch.randn(STEPS * batch, 3, 32, 32)
    model = torchvision.models.resnet18(num_classes=10)
    save_file(model.state_dict(), f"{folder}/model.safetensors")
    loss = lambda model, x, y: cross_entropy(model(x), y)  # noqa: E731
    return model, loss, lambda p: torch.optim.SGD(p, lr, momentum=0.9), lr, batch, x, y


def transformer(folder):
    """Translates words to the same words in reverse order."""
    batch, lr, words = 32, 5e-4, 64
    config = MarianConfig(
        vocab_size=words, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, activation_function="relu",
        scale_embedding=True, dropout=0.0, pad_token_id=1, decoder_start_token_id=0, max_position_embeddings=64,
    )  # fmt: skip
    x = torch.randint(2, words, (STEPS * batch, 12))
    y = x.flip(1)
    model = MarianMTModel(config)
    model.save_pretrained(folder)

    def loss(model, x, y):
        before = torch.cat([torch.zeros_like(y[:, :1]), y[:, :-1]], 1)
        logits = model(input_ids=x, decoder_input_ids=before).logits
        return cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=0.1)

    return model, loss, lambda p: torch.optim.Adam(p, lr, betas=(0.9, 0.98), eps=1e-9), lr, batch, x, y


def roberta(folder):
    """Words that count upwards, some of them masked."""
    batch, lr, words, mask = 32, 1e-3, 64, 3
    config = RobertaConfig(
        vocab_size=words, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=40, type_vocab_size=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5, pad_token_id=1,
    )  # fmt: skip
    first, length = 4, 24
    start, stride = torch.randint(words, (STEPS * batch, 1)), torch.randint(1, 4, (STEPS * batch, 1))
    y = first + (start + stride * torch.arange(length)) % (words - first)
    masked = torch.rand(y.shape) < 0.15
    x, y = torch.where(masked, mask, y), torch.where(masked, y, -100)
    model = RobertaForMaskedLM(config)
    model.save_pretrained(folder)

    def loss(model, x, y):
        return cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten())

    make = lambda p: torch.optim.AdamW(p, lr, betas=(0.9, 0.98), weight_decay=0.01)  # noqa: E731
    return model, loss, make, lr, batch, x, y


def train(model, loss, make, batch, x, y, dtype):
    model = copy.deepcopy(model).to(dtype).train()
    x = x.to(dtype) if x.is_floating_point() else x
    optimizer, losses = make(model.parameters()), []
    for x, y in zip(x.split(batch), y.split(batch)):
        optimizer.zero_grad()
        value = loss(model, x, y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def main():
    workloads = {workload.__name__: workload for workload in (resnet18, transformer, roberta)}
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=workloads, required=True)
    parser.add_argument("--folder", required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    model, loss, make, lr, batch, x, y = workloads[args.workload](args.folder)
    integers = lambda t: t if t.is_floating_point() else t.to(torch.int32)  # noqa: E731
    save_file({"x": integers(x).contiguous(), "y": integers(y).contiguous()}, f"{args.folder}/batches.safetensors")
    curves = {str(dtype)[6:].replace("loat", ""): train(model, loss, make, batch, x, y, dtype) for dtype in (torch.float32, torch.float64)}
    print(json.dumps({"torch": torch.__version__, "lr": lr, "batch": batch, **curves}))


if __name__ == "__main__":
    main()
