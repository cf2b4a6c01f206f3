"""What transformers' `generate` gives for the tiny models of this folder, with many settings: `generation/cases.json` has the
settings of each model, as a `generation_config.json` has them, and `generation/expected.safetensors` the results.

    pip install torch==2.15.0 transformers==5.23.0 && python generation.py

For each case: `FOLDER/CASE/tokens`, i32 [rows, new], with 1 after the end of a sequence. A beam search has the scores of its
sequences, `FOLDER/CASE/sequence_scores`, f32 [rows]. Otherwise, `FOLDER/CASE/scores`, f32 [rows, steps, vocabulary], has the
scores from which each token was chosen.
"""

import json
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
PAD = 1
VOCABULARY = 40
ENCODERS = ["marian", "t5"]


def settings(prompt, has_encoder, read, first, beams):
    """The settings for a prompt of `prompt` tokens. `read` are the tokens of the encoder, or of the prompt without one; `first`
    those that a greedy search and `beams` those that a beam search finds without settings, all of the first row."""
    end, new = first[6], {"max_new_tokens": 10}
    ends = new | {"eos_token_id": end}
    # Only tokens that were read are left, so that some of their pairs would come.
    others = [token for token in range(VOCABULARY) if token not in read]
    copied = {"max_new_tokens": 5, "suppress_tokens": others}
    if has_encoder:
        copied["no_repeat_ngram_size"] = 1
    bad = [[first[1]], [first[2], first[3]], first[3:6], [end]]
    restricted = {
        "repetition_penalty": new | {"repetition_penalty": 1.3},
        "repetition_reward": new | {"repetition_penalty": 0.8},
        "ngrams_of_1": new | {"no_repeat_ngram_size": 1},
        "ngrams_of_2": new | {"no_repeat_ngram_size": 2},
        "ngrams_of_4": new | {"no_repeat_ngram_size": 4},
        "encoder_ngrams_of_1": new | {"encoder_no_repeat_ngram_size": 1},
        "read": copied,
        "encoder_ngrams_of_2": copied | {"encoder_no_repeat_ngram_size": 2},
        "bad_words": ends | {"bad_words_ids": bad},
        "min_new_tokens": ends | {"min_new_tokens": 8, "min_length": 2},
        "min_length": ends | {"min_length": prompt + 8},
        "suppress": new | {"suppress_tokens": first[:3], "begin_suppress_tokens": [beams[0], beams[1]]},
        "begin_suppress": new | {"begin_suppress_tokens": [first[0], beams[0]]},
        "forced_first": new | {"forced_bos_token_id": 9, "begin_suppress_tokens": [first[0], first[1]]},
        "forced_last": ends | {"max_new_tokens": None, "max_length": prompt + 6, "forced_eos_token_id": [4, 5], "min_length": 3},
        "all": ends | {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "encoder_no_repeat_ngram_size": 3, "bad_words_ids": bad[:2],
                       "min_new_tokens": 3, "suppress_tokens": [8], "begin_suppress_tokens": [first[0]], "forced_eos_token_id": end, "renormalize_logits": True},
    }
    greedy = {
        "default": {},
        "max_length": {"max_length": prompt + 5},
        "both_lengths": {"max_length": prompt + 3, "max_new_tokens": 6},
        "temperature_0": new | {"temperature": 0.0, "top_k": 1, "top_p": 0.1},
    }
    searches = {f"{name}_beams": how | {"num_beams": 3} for name, how in restricted.items()} | {
        "best": ends | {"num_beams": 4, "num_return_sequences": 3},
        "best_short": ends | {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.5, "early_stopping": True, "no_repeat_ngram_size": 2},
    }
    drawn = new | {"do_sample": True}
    samples = {
        "sample": drawn | {"top_k": 0},
        "sample_likely": drawn | {"temperature": 0.7, "top_k": 12, "top_p": 0.8, "repetition_penalty": 1.3},
        "sample_min_p": drawn | {"temperature": 1.5, "top_k": 0, "min_p": 0.1, "no_repeat_ngram_size": 2},
        "sample_three": ends | {"do_sample": True, "num_return_sequences": 3, "min_p": 0.02, "renormalize_logits": True},
    }
    return greedy | restricted | searches | samples


class Folder:
    """A model of this folder, and what it reads."""

    def __init__(self, name):
        self.name = name
        known = load_file(HERE / name / "expected.safetensors")
        self.has_encoder = name in ENCODERS
        kind = transformers.AutoModelForSeq2SeqLM if self.has_encoder else transformers.AutoModelForCausalLM
        self.model = kind.from_pretrained(HERE / name, dtype=torch.float32).eval()
        # transformers counts the padding of an encoder's input in `encoder_no_repeat_ngram_size`, so there is none.
        ids = known["input_ids" if self.has_encoder else "ids"].long()
        self.inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        self.prompt = 1 if self.has_encoder else ids.shape[1]

    def generate(self, how, inputs=None):
        """The new tokens and what else `generate` returns, with a `generation_config.json` that says `how`."""
        start = {"decoder_start_token_id": 0} if self.has_encoder else {}
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps({"pad_token_id": PAD} | start | how)
            (Path(folder) / "generation_config.json").write_text(text)
            self.model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        torch.manual_seed(0)
        result = self.model.generate(**inputs or self.inputs, return_dict_in_generate=True, output_scores=True)
        return result.sequences[:, self.prompt if inputs is None else inputs["input_ids"].shape[1]:], result

    def values(self, how):
        tokens, result = self.generate(how)
        values = {"tokens": tokens}
        if how.get("num_beams", 1) > 1:
            return values | {"sequence_scores": result.sequences_scores}
        return values | {"scores": torch.stack(result.scores, 1)}

    def padded(self, how):
        """The same without padding, for two prompts, the second of which begins with three tokens of padding: each row is read
        alone."""
        ids = self.inputs["input_ids"]
        rows = [ids[:1], ids[1:, 3:]]
        found = [self.generate(how, {"input_ids": row, "attention_mask": torch.ones_like(row)})[0] for row in rows]
        new = max(tokens.shape[1] for tokens in found)
        return {"tokens": torch.cat([torch.nn.functional.pad(tokens, (0, new - tokens.shape[1]), value=PAD) for tokens in found])}


def main():
    cases, expected = {}, {}
    # Where the limit on pairs of the encoder's tokens makes a difference.
    copying = []
    for name in ["gpt2", "llama", "marian", "t5"]:
        folder = Folder(name)
        first = folder.generate({"max_new_tokens": 10})[0][0].tolist()
        beams = folder.generate({"max_new_tokens": 10, "num_beams": 3})[0][0].tolist()
        table = settings(folder.prompt, folder.has_encoder, folder.inputs["input_ids"][0].tolist(), first, beams)
        padded = [] if folder.has_encoder else ["repetition_penalty", "ngrams_of_2", "encoder_ngrams_of_2", "bad_words", "ngrams_of_2_beams", "all_beams"]
        results = {case: folder.values(how) for case, how in table.items()}
        for case in padded:
            table[f"padded_{case}"] = table[case] | {"min_length": None}
            results[f"padded_{case}"] = folder.padded(table[f"padded_{case}"])
        cases[name] = table
        for case, values in results.items():
            for key, value in values.items():
                value = value.int() if value.dtype == torch.int64 else value.float()
                expected[f"{name}/{case}/{key}"] = value.contiguous()
        for kind in ["", "_beams"]:
            if not torch.equal(results[f"encoder_ngrams_of_2{kind}"]["tokens"], results[f"read{kind}"]["tokens"]):
                copying.append(name + kind)
        plain = results["default"]["tokens"]
        same = [case for case in table if torch.equal(results[case]["tokens"][:, :5], plain[:, :5])]
        print(name, f"{len(table)} cases; as without settings:", same)
    print("encoder_no_repeat_ngram_size changes", copying)
    assert len(copying) > 2
    folder = HERE / "generation"
    folder.mkdir(exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
    save_file(expected, folder / "expected.safetensors")
    print(sum(path.stat().st_size for path in folder.iterdir()))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    with torch.no_grad():
        main()
