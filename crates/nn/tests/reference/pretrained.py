"""Weights as PyTorch and Hugging Face write them, and the logits that they give there. `generate.py` runs
it: small models of the real architectures, whose files are committed. With full-sized ones, into a folder:

    pip install torch transformers && python pretrained.py FOLDER
    FULMEN_PRETRAINED=FOLDER cargo test --release -p fulmen-nn --test pretrained -- --ignored

The weights are random, as no file of trained ones can be made here.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers

from common import FOLDER, MADE_WITH, draw, labels, tensor


def bert(folder, hidden, heads, vocabulary, positions):
    """One layer of BERT with its embeddings and a classifier: `pytorch_model.bin`."""
    config = transformers.BertConfig(
        vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=1, num_attention_heads=heads, intermediate_size=4 * hidden, max_position_embeddings=positions, num_labels=3
    )
    model = transformers.BertForSequenceClassification(config).eval()
    ids, kinds = labels("bert/ids", (2, 6), vocabulary), labels("bert/kinds", (2, 6), 2)
    seen = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    logits = model(input_ids=ids, token_type_ids=kinds, attention_mask=seen).logits
    return {"hidden": hidden, "heads": heads, "vocabulary": vocabulary, "positions": positions, "inputs": [tensor(ids), tensor(kinds), tensor(seen)], "outputs": [tensor(logits)]}


def gpt2(folder, width, heads, vocabulary, positions, shard):
    """One block of GPT-2 with its embeddings and the tied head, in shards with an index."""
    config = transformers.GPT2Config(vocab_size=vocabulary, n_positions=positions, n_embd=width, n_layer=1, n_head=heads, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = labels("gpt2/ids", (2, 7), vocabulary)
    shutil.rmtree(folder / "gpt2", ignore_errors=True)
    model.save_pretrained(folder / "gpt2", max_shard_size=shard)
    for path in (folder / "gpt2").iterdir():
        if "safetensors" not in path.name:
            path.unlink()
        else:
            path.chmod(0o644)
    logits = model(input_ids=ids).logits
    if vocabulary > 1000:
        logits = logits[:, :, ::997]
    return {"width": width, "heads": heads, "vocabulary": vocabulary, "positions": positions, "inputs": [tensor(ids)], "outputs": [tensor(logits)]}


def write_all(folder, full):
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    versions = MADE_WITH | {"transformers": transformers.__version__}
    with torch.no_grad():
        cases = {
            "bert": bert(folder, *((768, 12, 30522, 512) if full else (16, 4, 40, 8))),
            "gpt2": gpt2(folder, *((768, 12, 50257, 1024, "100MB") if full else (16, 4, 40, 8, "10KB"))),
        }
    (folder / "cases.json").write_text(json.dumps({"made_with": versions, "cases": cases}, separators=(",", ":")) + "\n")
    print(folder.name, {path.name: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()})


def pretrained():
    write_all(FOLDER / "pretrained", full=False)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]), full=True)
