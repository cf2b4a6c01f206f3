"""Adapters of peft with other settings than the usual ones, and the logits that they give: the folder `lora` beside this file.

    pip install torch==2.15.0 transformers==5.24.0 peft==0.21.2 && python lora.py

Each folder in it has an adapter for the model in the folder of this script that its config names; `expected.safetensors` has the
ids and, under the names of the folders, the logits.
"""

import json
import shutil

import peft
import torch
import transformers
from safetensors.torch import save_file

from texts import HERE, ids

FOLDER = HERE / "lora"
GPT2 = (transformers.GPT2LMHeadModel, "gpt2", dict(target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))
ROBERTA = (transformers.RobertaForSequenceClassification, "roberta-classifier", dict(target_modules=["query", "dense"], modules_to_save=["classifier"]))

# By name: the base, and the settings.
CASES = {
    "gpt2-rslora": (GPT2, dict(r=4, lora_alpha=3, use_rslora=True)),
    "gpt2-gaussian": (GPT2, dict(r=2, lora_alpha=6, init_lora_weights="gaussian")),
    "gpt2-pissa": (GPT2, dict(r=3, lora_alpha=6, init_lora_weights="pissa")),
    "roberta-pissa": (ROBERTA, dict(r=3, lora_alpha=5, init_lora_weights="pissa", use_rslora=True)),
    "roberta-olora": (ROBERTA, dict(r=3, lora_alpha=5, init_lora_weights="olora")),
    "roberta-orthogonal": (ROBERTA, dict(r=2, lora_alpha=5, init_lora_weights="orthogonal")),
}


def write():
    shutil.rmtree(FOLDER, ignore_errors=True)
    tokens = ids(70)
    expected = {"input_ids": tokens.int()}
    for number, (name, ((model_class, base, settings), more)) in enumerate(CASES.items()):
        torch.manual_seed(number)
        model = peft.get_peft_model(model_class.from_pretrained(HERE / base), peft.LoraConfig(**settings, **more)).eval()
        for parameter_name, parameter in model.named_parameters():
            if "lora" in parameter_name or "modules_to_save" in parameter_name:
                # As training changes it.
                parameter.data += 0.1 * torch.randn(parameter.shape)
        expected[name] = model(tokens).logits.contiguous()
        folder = FOLDER / name
        model.save_pretrained(folder)
        (folder / "README.md").unlink()
        loaded = peft.PeftModel.from_pretrained(model_class.from_pretrained(HERE / base), folder).eval()
        off = (loaded(tokens).logits - expected[name]).abs().max() / expected[name].abs().max()
        plain = (model_class.from_pretrained(HERE / base).eval()(tokens).logits - expected[name]).abs().max() / expected[name].abs().max()
        print(f"{name}: {off:.1e} off when loaded again, {plain:.1e} from the base")
        assert off < 1e-5
        # The folder of the base is not the same everywhere.
        file = folder / "adapter_config.json"
        same = {"base_model_name_or_path": base, "target_modules": settings["target_modules"]}
        file.write_text(json.dumps(json.loads(file.read_text()) | same, indent=2, sort_keys=True) + "\n")
        for path in folder.iterdir():
            path.chmod(0o644)
    save_file(expected, FOLDER / "expected.safetensors")


if __name__ == "__main__":
    with torch.no_grad():
        write()
