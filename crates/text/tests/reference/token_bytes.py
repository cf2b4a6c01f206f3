"""The bytes that transformers' StopStringCriteria finds in each token of the tokenizers of this folder, for tests/it.

    pip install transformers==5.23.0 && python crates/text/tests/reference/token_bytes.py

It writes, beside itself, text_fallback.json, a tokenizer with the tokens of Llama 2, and token_bytes.json: for each tokenizer,
a list with the hexadecimal digits of each token's bytes, null for an id that no token has.
"""

import json
import pathlib

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.generation.stopping_criteria import StopStringCriteria

HERE = pathlib.Path(__file__).parent


def fallback():
    """As Llama 2's: a normalizer puts ▁ for spaces, and bytes stand for unknown characters."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    merged = ["▁a", "▁ab", "▁abc", "de", "def", "▁st", "op", "▁stop", "▁é", "▁▁"]
    tokens += ["▁", *"abcdefstopé."] + merged
    vocabulary = {}
    for token in tokens:
        vocabulary.setdefault(token, len(vocabulary))
    merges = [("▁", "a"), ("▁a", "b"), ("▁ab", "c"), ("d", "e"), ("de", "f"), ("▁", "s"), ("o", "p"), ("▁", "é"), ("▁", "▁")]
    vocabulary["▁s"] = len(vocabulary)
    merges += [("▁s", "t"), ("▁st", "op")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>", AddedToken("<|é end|>", special=True)])
    return tokenizer


def main():
    fallback().save(str(HERE / "text_fallback.json"))
    found = {}
    for name in ["bpe", "split", "wordpiece", "unigram", "fallback"]:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE / f"text_{name}.json"))
        mode = StopStringCriteria._get_stop_string_matching_mode(tokenizer)
        texts, ids = StopStringCriteria.clean_tokenizer_vocab(tokenizer, stop_string_matching_mode=mode)
        tokens = [None] * (max(ids) + 1)
        for text, i in zip(texts, ids):
            tokens[i] = (text if isinstance(text, bytes) else text.encode()).hex()
        print(name, mode, tokens[-3:])
        found[name] = tokens
    (HERE / "token_bytes.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
