"""What Hugging Face's libraries make of some texts, for tests/it.

Made with Python 3.13, tokenizers 0.23.3, transformers 5.23.0, torch 2.15.0:

    python crates/text/tests/reference/text.py

It trains four small tokenizers on the sentences below and writes, beside itself, text_bpe.json, text_wordpiece.json,
text_unigram.json and text_split.json (the tokenizers) and text.json (what they, and the collators of transformers, give).
"""

import json
import pathlib

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent

CORPUS = [
    "The thunder rolls over the hills long after the lightning has gone.",
    "A storm gathers in the west, and the farmers bring their horses home.",
    "Nobody counted the flashes that night; there were too many of them.",
    "She measured the distance by counting seconds between light and sound.",
    "Sound travels three hundred and forty metres in a second, light a million times as far.",
    "The old oak at the crossroads has been struck seven times, and it still stands.",
    "Rain fell on the roof, on the road, and on the river, which was rising.",
    "In the morning the air was clear, and the grass was wet, and nothing moved.",
    "They wrote down the hour, the wind, the height of the clouds, and the damage.",
    "A conductor of copper leads the current from the roof into the ground.",
    "Children who are afraid of thunder should be told how far away it is.",
    "The tallest tree, the highest tower, the lonely walker: these are in danger.",
    "Electric charge gathers at the bottom of the cloud until the air gives way.",
    "What we see is the return stroke, which rises from the ground to the cloud.",
    "It lasts a few thousandths of a second, and it is hotter than the surface of the sun.",
    "Far away, the flashes light up the clouds from within, and no thunder is heard.",
]

TEXTS = [
    "The thunder rolls over the hills.",
    "Lightning!",
    "",
    "   ",
    "a",
    "Counting the seconds between light and sound, she measured the distance; nobody else did, that night.",
    "Ein Gewitter über Köln: Blitz, Donner, 37 °C.",
    "雷が鳴る",
    "naïve café\tand\na new line",
    "⚡️ 👩‍🔬",
    "words-with-dashes, and words'with'quotes",
    "A literal [MASK] and a literal [SEP] and <|endoftext|> too",
    "thunderthunderthunderthunder",
    "It's 12345 steps, we'll see;   three  spaces and\r\n\r\n  a ﬁne ligature ①",
    "The tallest tree, the highest tower, the lonely walker: these are in danger. " * 3,
]

PAIRS = [
    ("The storm is near.", "It is far away."),
    ("A storm gathers in the west, and the farmers bring their horses home.", "Rain."),
    ("Rain.", "A storm gathers in the west, and the farmers bring their horses home."),
    ("Nobody counted the flashes that night.", "There were too many of them to be counted."),
    ("", "Nothing comes before."),
]


def train_bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def train_wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    sep, cls = tokenizer.token_to_id("[SEP]"), tokenizer.token_to_id("[CLS]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    # What a file says of padding and truncation is not to be followed.
    tokenizer.enable_padding(length=64, pad_id=0, pad_token="[PAD]")
    tokenizer.enable_truncation(max_length=9)
    return tokenizer


def train_unigram():
    """As T5's and XLM-R's: SentencePiece's unigram model."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", end)]
    )
    return tokenizer


def train_split():
    """As Llama 3's: words by a regular expression with a look-ahead, bytes, and a token at the beginning."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A",
            pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
            special_tokens=[("<|begin_of_text|>", begin)],
        ),
    ])
    return tokenizer


def encoding(e):
    return {
        "ids": e.ids,
        "type_ids": e.type_ids,
        "special": e.special_tokens_mask,
        "words": e.word_ids,
    }


def encodings(tokenizer):
    tokenizer.no_padding()
    tokenizer.no_truncation()
    result = {
        "vocab_size": tokenizer.get_vocab_size(),
        "texts": [
            {"text": text, "encoding": encoding(tokenizer.encode(text)),
             "plain": tokenizer.encode(text, add_special_tokens=False).ids,
             "decoded": tokenizer.decode(tokenizer.encode(text).ids)}
            for text in TEXTS
        ],
        "pairs": [{"pair": pair, "encoding": encoding(tokenizer.encode(*pair))} for pair in PAIRS],
        "truncated": [],
    }
    for strategy in ["longest_first", "only_first", "only_second"]:
        for side in ["left", "right"]:
            for length in [8, 13]:
                tokenizer.enable_truncation(max_length=length, strategy=strategy, direction=side)
                for pair in PAIRS:
                    try:
                        ids = tokenizer.encode(*pair).ids
                    except Exception:
                        ids = None  # The other text alone is too long.
                    result["truncated"].append(
                        {"strategy": strategy, "side": side, "length": length, "pair": pair, "ids": ids}
                    )
    tokenizer.no_truncation()
    return result


def fast(tokenizer, **options):
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


def samples(tokenizer):
    """Samples of 16 tokens, as transformers pads and truncates them."""
    result = []
    for padding in ["left", "right"]:
        for truncation in ["left", "right"]:
            wrapped = fast(
                tokenizer, pad_token="[PAD]", padding_side=padding, truncation_side=truncation, mask_token="[MASK]"
            )
            options = {"padding": "max_length", "truncation": "longest_first", "max_length": 16}
            options["return_token_type_ids"] = True
            single = wrapped(TEXTS, **options)
            double = wrapped([p[0] for p in PAIRS], [p[1] for p in PAIRS], **options)
            result.append({"padding": padding, "truncation": truncation, "single": dict(single), "pairs": dict(double)})
    return result


def causal(tokenizer):
    """The labels of transformers' collator for causal models."""
    wrapped = fast(tokenizer, pad_token="<|endoftext|>", eos_token="<|endoftext|>")
    collator = DataCollatorForLanguageModeling(wrapped, mlm=False)
    texts = TEXTS[:2] + TEXTS[5:7]
    batch = collator([wrapped(text, return_token_type_ids=False) for text in texts])
    return {"texts": texts, **{name: value.tolist() for name, value in batch.items()}}


def packing(tokenizer):
    end = tokenizer.token_to_id("<|endoftext|>")
    documents = [tokenizer.encode(text).ids for text in CORPUS + TEXTS]
    length = 24

    joined = []
    for document in documents:
        if document:
            joined += document + [end]
    blocks = [joined[i : i + length] for i in range(0, len(joined) // length * length, length)]
    # The next token at every place, as in PyTorch's language models: x = data[i:i+n], y = data[i+1:i+1+n].
    shifted = [joined[i + 1 : i + 1 + length] for i in range(0, len(joined) // length * length, length)]

    def first_fit(pieces):
        bins = []
        for piece in pieces:
            for group in bins:
                if sum(map(len, group)) + len(piece) <= length:
                    group.append(piece)
                    break
            else:
                bins.append([piece])
        return bins

    pieces = []
    for document in documents:
        if document:
            document = document + [end]
            pieces += [document[i : i + length] for i in range(0, len(document), length)]
    rows = []
    for group in first_fit(pieces):
        ids = sum(group, [])
        segments = [i + 1 for i, piece in enumerate(group) for _ in piece]
        positions = [i for piece in group for i in range(len(piece))]
        labels = [token for piece in group for token in piece[1:] + [-100]]
        pad = length - len(ids)
        rows.append({
            "input_ids": ids + [end] * pad,
            "attention_mask": [1] * len(ids) + [0] * pad,
            "segment_ids": segments + [0] * pad,
            "position_ids": positions + [0] * pad,
            "labels": labels + [-100] * pad,
        })
    decreasing = [sum(group, []) for group in first_fit(sorted(pieces, key=len, reverse=True))]
    return {
        "texts": CORPUS + TEXTS, "length": length, "blocks": blocks, "shifted": shifted, "first_fit": rows,
        "decreasing": decreasing,
    }


def masking(tokenizer):
    """How often transformers' collator does what, over 2,000 samples of 64 tokens."""
    wrapped = fast(tokenizer, pad_token="[PAD]", mask_token="[MASK]", cls_token="[CLS]", sep_token="[SEP]",
                   unk_token="[UNK]")
    text = " ".join(CORPUS)
    row = wrapped(text, truncation=True, max_length=60, padding=False, return_token_type_ids=False)["input_ids"]
    row = row + [0] * (64 - len(row))
    collator = DataCollatorForLanguageModeling(wrapped, mlm=True, mlm_probability=0.15, seed=1)
    before = torch.tensor([row] * 2000)
    batch = collator([{"input_ids": row} for _ in range(2000)])
    after, labels = batch["input_ids"], batch["labels"]
    chosen = labels != -100
    assert (labels[chosen] == before[chosen]).all() and (after[~chosen] == before[~chosen]).all()
    mask = after == wrapped.mask_token_id
    return {
        "row": row,
        "maskable": int(2000 * sum(token > 4 for token in row)),
        "chosen": int(chosen.sum()),
        "masked": int((chosen & mask).sum()),
        "changed": int((chosen & ~mask & (after != before)).sum()),
        "kept": int((chosen & (after == before)).sum()),
    }


def main():
    bpe, wordpiece = train_bpe(), train_wordpiece()
    bpe.save(str(HERE / "text_bpe.json"), pretty=False)
    wordpiece.save(str(HERE / "text_wordpiece.json"), pretty=False)
    unigram, split = train_unigram(), train_split()
    unigram.save(str(HERE / "text_unigram.json"), pretty=False)
    split.save(str(HERE / "text_split.json"), pretty=False)
    result = {
        "bpe": encodings(bpe),
        "wordpiece": encodings(wordpiece),
        "unigram": encodings(unigram),
        "split": encodings(split),
        "samples": samples(wordpiece),
        "causal": causal(bpe),
        "packing": packing(bpe),
        "masking": masking(wordpiece),
    }
    (HERE / "text.json").write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
