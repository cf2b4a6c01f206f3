"""What transformers gives for the tiny models of this folder if the attention mask hides all tokens of the second row:
`masked_rows/expected.safetensors` has the logits of each model. The inputs are those of its own folder, and for encoder-decoders the ids
`DECODER_IDS`.

    pip install torch==2.15.0 transformers==5.23.0 && python masked_rows.py
"""

import torch
import transformers
from safetensors.torch import load_file, save_file

from common import FOLDER

KINDS = {
    "bert": transformers.AutoModelForMaskedLM,
    "roberta": transformers.AutoModelForMaskedLM,
    "marian": transformers.AutoModelForSeq2SeqLM,
    "t5": transformers.AutoModelForSeq2SeqLM,
    "t5-gated": transformers.AutoModelForSeq2SeqLM,
}
DECODER_IDS = [[0, 5, 6, 7], [0, 8, 9, 3]]


def main():
    found = {}
    for name, kind in KINDS.items():
        model = kind.from_pretrained(FOLDER / name, dtype=torch.float32).eval()
        ids = load_file(FOLDER / name / "expected.safetensors")["input_ids"].long()
        inputs = {"input_ids": ids}
        if kind is transformers.AutoModelForSeq2SeqLM:
            inputs["decoder_input_ids"] = torch.tensor(DECODER_IDS)
        mask = torch.ones_like(ids)
        seen = model(attention_mask=mask, **inputs).logits
        mask[1] = 0
        found[name] = model(attention_mask=mask, **inputs).logits.contiguous()
        print(name, (found[name] - seen).abs().amax(dim=(1, 2)).tolist())
    folder = FOLDER / "masked_rows"
    folder.mkdir(exist_ok=True)
    save_file(found, folder / "expected.safetensors")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    with torch.no_grad():
        main()
