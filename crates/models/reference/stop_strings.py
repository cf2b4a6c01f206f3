"""What transformers' `generate` gives with `stop_strings` for the tiny decoders of this folder: `generation/stop_strings.json`.

    pip install torch==2.15.0 transformers==5.23.0 && python stop_strings.py

The models have no tokenizers, so each gets one whose texts make the cases interesting: GPT-2 byte-level tokens, Llama tokens of
SentencePiece. Each prompt is read alone: without an end token, transformers goes on with a sequence that has stopped until all
have. For each model: `bytes`, the hexadecimal digits of each token's bytes, and `cases`, each with the settings and the
new tokens, with 1 after the end of a sequence.
"""

import json

import torch
import transformers
from generation import HERE, PAD, VOCABULARY, Folder
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.generation.stopping_criteria import StopStringCriteria

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def texts(first):
    """The text of each token as bytes; `first` are the tokens that a greedy search finds for the first row."""
    known = [letter.encode() for letter in "abcdef"]
    while len(known) < VOCABULARY:
        n = len(known)
        known.append((LETTERS[n % 26] + LETTERS[n * 7 % 26] + LETTERS[n * 11 % 26] + " ")[: 1 + n % 4].encode() + b"%d" % n)
    return known


def byte_level(known):
    names = bytes_to_unicode()
    vocabulary = {"".join(names[byte] for byte in text): i for i, text in enumerate(known)}
    assert len(vocabulary) == VOCABULARY
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def sentence_piece(known):
    vocabulary = {text.decode().replace(" ", "▁") if len(text) > 1 or text < b"\x80" else f"<0x{text[0]:02X}>": i for i, text in enumerate(known)}
    assert len(vocabulary) == VOCABULARY
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def generate(folder, tokenizer, how, prompts):
    """The new tokens of each prompt, `[1, length]`, as rows of one length."""
    folder.model.generation_config = transformers.GenerationConfig(pad_token_id=PAD, **how)
    rows = []
    for ids in prompts:
        tokens = folder.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), tokenizer=tokenizer)
        # Without an end token, a beam search returns −1 after the end of a sequence.
        tokens = tokens[:, ids.shape[1]:]
        rows += torch.where(tokens < 0, PAD, tokens).tolist()
    longest = max(map(len, rows))
    return [row + [PAD] * (longest - len(row)) for row in rows]


def main():
    result = {}
    for name, make in [("gpt2", byte_level), ("llama", sentence_piece)]:
        folder = Folder(name)
        ids = folder.inputs["input_ids"]
        greedy = folder.generate({"max_new_tokens": 10})[0].tolist()
        beams = folder.generate({"max_new_tokens": 10, "num_beams": 3})[0].tolist()
        print(name, ids.tolist(), greedy, beams)
        known = texts(greedy[0])
        # A character in two tokens that follow each other in the first row.
        pair = next((a, b) for a, b in zip(greedy[0][1:], greedy[0][2:]) if a != b and min(a, b) > 5)
        known[pair[0]], known[pair[1]] = (b"x\xc3", b"\xa9y") if make is byte_level else (b"\xc3", b"\xa9")
        tokenizer = make(known)
        mode = StopStringCriteria._get_stop_string_matching_mode(tokenizer)
        found = dict(zip(*reversed(StopStringCriteria.clean_tokenizer_vocab(tokenizer, stop_string_matching_mode=mode))))
        assert [found[i] for i in range(VOCABULARY)] == known, mode
        print(mode, known)

        def text(tokens):
            return b"".join(known[token] for token in tokens)

        def string(tokens, cut=0, end=None):
            """A part of the text of tokens, without characters that are not whole."""
            return text(tokens)[cut:end].decode(errors="ignore")

        new = {"max_new_tokens": 10}
        long = next(known[token] for token in greedy[0][1:] if len(known[token]) > 2)
        inside = long[1:2].decode()
        other = string(greedy[1][3:6], 1, -1)
        table = {
            "whole_token": new | {"stop_strings": [string(greedy[0][4:5]) or string(greedy[0][5:6])]},
            "within_a_token": new | {"stop_strings": inside},
            "over_tokens": new | {"stop_strings": [string(greedy[0][2:6], 1, -1)]},
            "character_in_two_tokens": new | {"stop_strings": ["é"]},
            "with_the_prompt": new | {"stop_strings": [string(ids[0].tolist()[-2:] + greedy[0][:1], 1)]},
            "each_row_its_own": new | {"stop_strings": [string(greedy[0][1:4], 1), other]},
            "never": new | {"stop_strings": [string(greedy[0][2:5]) + "~" + string(greedy[0][2:3], 0, 1)]},
            "with_an_end": new | {"eos_token_id": greedy[0][3], "stop_strings": [other, string(greedy[0][4:6], 1) or "zz"]},
            "beams": new | {"num_beams": 3, "stop_strings": [string(beams[0][2:5], 1, -1) or string(beams[0][2:5])]},
            "beams_two": new | {"num_beams": 4, "num_return_sequences": 2, "early_stopping": True, "stop_strings": [string(beams[0][1:3]), other]},
        }
        prompts = [ids[:1], ids[1:]]
        plain = generate(folder, tokenizer, new, prompts)
        cases = {}
        for case, how in table.items():
            tokens = generate(folder, tokenizer, how, prompts)
            print(" ", case, how, tokens, [text(row) for row in tokens])
            assert (case == "never") == (tokens == plain), case
            cases[case] = {"settings": how, "tokens": tokens}
        # The second row lacks three tokens.
        how = table["each_row_its_own"]
        cases["padded"] = {"settings": how, "tokens": generate(folder, tokenizer, how, [ids[:1], ids[1:, 3:]])}
        result[name] = {"bytes": [text.hex() for text in known], "cases": cases}
    (HERE / "generation" / "stop_strings.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    with torch.no_grad():
        main()
