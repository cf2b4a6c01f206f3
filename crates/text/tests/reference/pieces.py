"""Tokenizers of sentencepiece and tiktoken, and their ids for unusual texts, for tests/it/pieces.rs and tiktoken.rs.

    pip install sentencepiece==0.2.3 tiktoken==0.14.0 transformers==5.24.0 protobuf
    python crates/text/tests/reference/pieces.py

It writes the folder pieces beside itself. Of the models of sentencepiece, the ids are sentencepiece's own: special tokens
are cut out of the text first, and each part between them is encoded by itself.

    python crates/text/tests/reference/pieces.py random SEED COUNT OUTPUT

writes ids of many random texts, for the test that is ignored by default.
"""

import base64
import collections
import gzip
import inspect
import io
import json
import pathlib
import random
import re
import sys
import tempfile
import unicodedata

import regex
import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2

HERE = pathlib.Path(__file__).parent / "pieces"

SENTENCES = """The thunder rolls over the hills and the lightning follows it down to the river.
A storm that comes from the west brings rain, and the rain brings mud, and the mud stays.
Why would anyone walk there at night? Nobody knows; they do it anyway, every year.
In 1987 the water rose by 3.5 metres, and in 2021 it rose again: 12,000 people moved.
"Don't," said the old man, "you'll not find the ferry; it's gone, and we've lost the rope."
Der Donner rollt über die Hügel, und der Blitz folgt ihm hinunter an den Fluß.
Le tonnerre roule sur les collines où l'éclair l'a déjà précédé, ça et là.
El río creció otra vez; ¿quién lo habría creído? Mañana lloverá más.
雷が丘の上で鳴り、雨が川に降る。川の水は高くなる。雷と雨。
雷声在山上响起，雨水流进河里。河水上涨了。雨水和雷声。
Гром гремит над холмами, и дождь идёт над рекой. Дождь и гром.
def flood(level, rain=0.5): return level + rain * 2  # no limit
for i in range(10): print(i, "rain" if i % 2 else "sun")
""".splitlines()

SYMBOLS = ["<sep>", "▁▁", "▁▁▁", "\n\n", "rain@", "ﬁx"]

RULES = {
    "ﬁ": "fi", "Ａ": "a", "Ｂ": "b", "Ａ Ｂ": "ab", "e\u0301": "\u00e9", "e\u0301\u0301": "E", "\u00a0": " ", "\u3000": "  ",
    "\u200b": "", "\u0007": "", "㍿": "株式会社", "…": " . ", "T": "t", "D": "d", "Fluß": "fluss", "ß": "ss", "\t": " ", "\n": " ",
    "½": "1⁄2", "’": "'",
}


def corpus():
    pick = random.Random(1)
    lines = list(SENTENCES)
    words = " ".join(SENTENCES).split()
    for _ in range(400):
        lines.append(" ".join(pick.choice(words) for _ in range(pick.randint(3, 14))))
    return lines


def train(name, **settings):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=out, hard_vocab_limit=False, minloglevel=2, num_threads=1,
        shuffle_input_sentence=False, **settings,
    )
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(out.getvalue())
    return model


def models():
    rules = HERE / "rules.tsv"
    line = lambda text: " ".join(f"{ord(character):X}" for character in text)
    rules.write_text("".join(f"{line(key)}\t{line(value)}\n" for key, value in RULES.items()))
    # As T5's and XLM-RoBERTa's.
    yield "unigram", train("unigram", vocab_size=260, model_type="unigram", character_coverage=0.98, user_defined_symbols=SYMBOLS[:1])
    # As Llama's.
    yield "bpe", train(
        "bpe", vocab_size=600, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, character_coverage=0.98, split_digits=True, allow_whitespace_only_pieces=True,
    )
    # As Gemma's.
    yield "no_prefix", train(
        "no_prefix", vocab_size=620, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        add_dummy_prefix=False, remove_extra_whitespaces=False, character_coverage=0.99, user_defined_symbols=SYMBOLS,
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>", eos_piece="<eos>", control_symbols=["<mask>"],
    )
    yield "rules", train(
        "rules", vocab_size=560, model_type="unigram", byte_fallback=True, normalization_rule_tsv=str(rules),
        character_coverage=0.98, user_defined_symbols=SYMBOLS[3:], control_symbols=["<ctl>"],
    )
    bpe = train(
        "unused", vocab_size=240, model_type="bpe", character_coverage=0.98, normalization_rule_name="identity",
        split_by_whitespace=False, user_defined_symbols=SYMBOLS[4:],
    )
    for number, piece in enumerate(bpe.pieces):
        if piece.type == 1 and len(piece.piece) > 2 and number % 3 == 0:
            piece.type = 5
    yield "unused", bpe
    rules.unlink()


NASTY = [
    "", " ", "  ", "a", " a", "a ", "  a  ", "a  b", "a   b    c", "\n", "\n\n", "\n\n\n", "a\nb", "a\n\nb", "\ta\t", "▁", "▁▁", " ▁ ", "▁a", "a▁", "a▁▁b",
    "thunder", "Thunder rolls", " thunder  rolls ", "thunderthunderthunder", "THUNDER", "über", "u\u0308ber", "e\u0301", "e\u0301\u0301", "é́", "ﬁ", "ﬁx", "ﬁ\u0301",
    "prefix ﬁx ﬁx", "Ａ", "Ａ Ｂ", "ＡＢＣ １２３", "½", "…", "a…b", "…a", "a…", "Fluß", "ß", "㍿", "株式会社", "雷が鳴る", "雷声　响起", "　雷", "雷　", "\u00a0a\u00a0", "a\u200bb",
    "a\u200db", "\u200b", "\u200b \u200b", "👩‍💻", "👍🏽", "🇩🇪🇫🇷", "🦀 crab 🦀🦀", "☃", "☃☃", "☃ ☃", " ☃", "☃a☃", "\u0000", "a\u0000b", "\u0001\u0002", "\u0007", "a\u0007b",
    "\u007f", "\u0085", "\u2028", "\ufeffa", "\ufffd", "\U0010ffff", "<s>", "</s>", "<unk>", "<s>a", "a<s>", "a<s>b</s>c", " <s> a </s> ", "<s><s>", "<pad>", "<mask>", "a <mask> b",
    "<0x0A>", "<0x41>x", "<sep>", "a<sep>b", "a <sep> b", "<sep><sep>", "rain@home", "xrain@", "ra in@", "<ctl>", "a<ctl> b", "<extra_id_0>", "a <extra_id_99> b", "<mask><mask>",
    "Don't, you'll it's we've", "12,000 3.5 1987", "def flood(level):\n    return level  # no", "\r\n", "a\r\nb", "a" * 90, "ab" * 40, " " * 40, "a" + " " * 30 + "b", "雷" * 30, "☃" * 12,
    "лес", "Гром гремит", "Ёлка", "שלום", "مرحبا", "नमस्ते", "ไทย", "한국어", "Ａ\u0301", "ǅ", "ﬀﬃ", "㌔", "ﷺ", "①②③", "ｶﾞ", "x\u0338", "ą́", "\u1e9b\u0323", "K", "Å", "İi", "ſs",
    "Ωμέγα", "\u0344", "\u0f43", "\u2126", "a\u0315\u0300\u05ae\u0062", "\u0041\u030a\u0041", "\u1100\u1161\u11a8", "\uac00\u11a8", "‱ ‰ %", "﹏﹎", "\u2003a\u2009b\u202fc", "t5 T5 T 5",
]


def random_texts(seed, count):
    pick = random.Random(seed)
    alphabet = list("   aeithrnd.,'▁") + list("\n\té雷雨水🦀☃ß…ＡﬁＢ½") + ["\u0301", "\u0308", "\u200b", "\u00a0", "\u3000", "\u200d", "e\u0301"]
    alphabet += SYMBOLS + ["<s>", "</s>", "<unk>", "<0x0A>"]
    words = " ".join(SENTENCES).split()
    for _ in range(count):
        parts = []
        for _ in range(pick.randint(1, 9)):
            kind = pick.random()
            if kind < 0.45:
                parts.append(pick.choice(alphabet))
            elif kind < 0.8:
                parts.append(pick.choice(words)[: pick.randint(1, 9)])
            elif kind < 0.87:
                parts.append(chr(pick.choice([pick.randrange(1, 0x800), pick.randrange(0x2000, 0x3400), pick.randrange(0xf900, 0xffff)])))
            elif kind < 0.9:
                parts.append(pick.choice(alphabet) * pick.randint(2, 12))
            else:
                parts.append(" ")
        yield "".join(parts)


def encode(processor, special, text):
    """The ids of a text whose special tokens, by name, are cut out."""
    pattern = "|".join(re.escape(token) for token in sorted(special, key=len, reverse=True))
    found = []
    for part in re.split(f"({pattern})", text):
        if part in special:
            found.append(special[part])
        elif part:
            found += processor.encode(part)
    return found


def special_of(model):
    return {piece.piece: number for number, piece in enumerate(model.pieces) if piece.type in (2, 3)}


def processor_of(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def cases(model, texts):
    processor = processor_of(model)
    special = special_of(model)
    found = []
    for text in texts:
        ids = encode(processor, special, text)
        case = {"text": text, "ids": ids}
        decoded = processor.decode(ids)
        if not any(i in special.values() for i in ids) and decoded != text:
            case["decoded"] = decoded
        found.append(case)
    return found


PLAIN = ["thunder rolls", "the rain, and the mud: stays.", "", "don't  walk", "a b  c", "rain"]

TOKEN = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}


def folders():
    """What transformers reads from folders: their files, and ids of texts of which it is as exact as sentencepiece."""
    llama = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    added = {"added_tokens_decoder": {"600": {"content": "<|user|>", **TOKEN}, "601": {"content": "<|end|>", **TOKEN, "rstrip": True}}}
    yield "bpe", "tokenizer.model", {**llama, "legacy": True, "add_bos_token": True, "add_eos_token": False}, ["a<s>b", "<s>rain</s>"]
    yield "bpe", "tokenizer.model", {**llama, "legacy": False, "add_bos_token": True, "add_eos_token": True}, ["a<s>b", "<s>rain</s>rain"]
    yield "bpe", "tokenizer.model", {**llama, **added, "legacy": False, "add_bos_token": False, "add_eos_token": False}, ["<|user|>rain<|end|>  rain"]
    yield "bpe", "tokenizer.model", {**llama, "legacy": False, "add_bos_token": True, "add_eos_token": False, "pad_token": "<pad>"}, ["a<pad>b"]
    gemma = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False}
    yield "no_prefix", "tokenizer.model", gemma, ["a<eos>b"]
    yield "unigram", "spiece.model", {"tokenizer_class": "T5Tokenizer", "extra_ids": 4, "unk_token": "<unk>", "pad_token": "<unk>"}, ["rain <extra_id_0> mud <extra_id_3>"]
    yield "unigram", "sentencepiece.bpe.model", {"tokenizer_class": "XLMRobertaTokenizer"}, ["the <mask> rolls"]
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "legacy": False, "add_bos_token": True, "add_eos_token": True, "bos_token": "<s>", "eos_token": "</s>"}
    yield "bpe", "tokenizer.model", plain, ["a<s>b"]


def folder_cases():
    from transformers import AutoTokenizer

    found = []
    for model, file, config, further in folders():
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / file).write_bytes(gzip.decompress((HERE / f"{model}.model.gz").read_bytes()))
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
            tokenizer = AutoTokenizer.from_pretrained(name)
            pairs = [["rain", "the mud"], ["", "a"]]
            both = [tokenizer(*pair, return_token_type_ids=True) for pair in pairs]
            found.append({
                "model": model, "file": file, "config": config, "count": len(tokenizer),
                "texts": [{"text": text, "ids": tokenizer.encode(text)} for text in PLAIN + further],
                "pairs": [{"pair": pair, "ids": one["input_ids"], "types": one["token_type_ids"]} for pair, one in zip(pairs, both)],
            })
    return found


def marian_cases(texts):
    """A translator whose vocabulary lacks some pieces, and has a character that the source model does not know."""
    from transformers import MarianTokenizer

    models = {}
    for name in ["unigram", "rules"]:
        models[name] = sentencepiece_model_pb2.ModelProto()
        models[name].ParseFromString(gzip.decompress((HERE / f"{name}.model.gz").read_bytes()))
    pieces = [piece.piece for model in models.values() for piece in model.pieces if piece.type != 3]
    tokens = ["</s>", ">>deu<<", "☃☃", "🦀"] + [piece for number, piece in enumerate(pieces) if number % 17]
    if "<unk>" not in tokens:
        tokens.append("<unk>")
    vocab = {token: number for number, token in enumerate(dict.fromkeys(tokens + ["<pad>"]))}
    texts = texts + [">>deu<< the rain", ">>deu<<", "rain</s> mud", "<pad>a<unk>"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "source.spm").write_bytes(models["unigram"].SerializeToString())
        (folder / "target.spm").write_bytes(models["rules"].SerializeToString())
        (folder / "vocab.json").write_text(json.dumps(vocab))
        (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
        tokenizer = MarianTokenizer.from_pretrained(name)
        source = [tokenizer.encode(text) for text in texts]
        target = [tokenizer(text_target=text)["input_ids"] for text in texts]
        pair = tokenizer("rain", "the mud")["input_ids"]
    return {"vocab": vocab, "texts": texts, "source": source, "target": target, "pair": pair}


def train_ranks(pattern, count):
    """The bytes, and the most frequent pairs of tokens."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    words = collections.Counter(word.encode() for line in corpus() for word in regex.findall(pattern, line))
    parts = {word: [bytes([byte]) for byte in word] for word in words}
    while len(ranks) < count:
        pairs = collections.Counter()
        for word, tokens in parts.items():
            for pair in zip(tokens, tokens[1:]):
                pairs[pair] += words[word]
        left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        ranks[left + right] = len(ranks)
        for tokens in parts.values():
            place = 0
            while place + 1 < len(tokens):
                if (tokens[place], tokens[place + 1]) == (left, right):
                    tokens[place : place + 2] = [left + right]
                place += 1
    return ranks


def encodings(ranks):
    from tiktoken_ext import openai_public
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    openai_public.load_tiktoken_bpe = lambda *args, **settings: ranks
    openai_public.data_gym_to_mergeable_bpe_ranks = lambda *args, **settings: ranks
    for name in ["gpt2", "r50k_base", "p50k_base", "p50k_edit", "cl100k_base", "o200k_base"]:
        settings = getattr(openai_public, name)()
        settings.pop("explicit_n_vocab", None)
        yield name, tiktoken.Encoding(**settings)
    llama3 = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    names = ["<|begin_of_text|>", "<|end_of_text|>"] + [f"<|reserved_special_token_{number}|>" for number in range(4)]
    names += ["<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"]
    special = {name: len(ranks) + number for number, name in enumerate(names)}
    yield "llama3", tiktoken.Encoding("llama3", pat_str=llama3, mergeable_ranks=ranks, special_tokens=special)
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    special = {name: len(ranks) + number for number, name in enumerate(names)}
    yield "qwen", tiktoken.Encoding("qwen", pat_str=PRETOKENIZE_REGEX, mergeable_ranks=ranks, special_tokens=special)


def rank_cases(texts):
    ranks = train_ranks(r"\p{N}{1,3}| ?[^\s\p{N}]+|\s+", 560)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (HERE / "ranks.tiktoken").write_text("".join(lines))
    texts = texts + ["<|endoftext|>", "a<|endoftext|> b", "x <|im_start|>y", "<|eot_id|>", "it'S I'LL DON'T", "camelCase HTTPServer", "1234567", "a/b//\n/", "ſ'ſ"]
    found = {}
    for name, encoding in encodings(ranks):
        normalize = (lambda text: unicodedata.normalize("NFC", text)) if name == "qwen" else (lambda text: text)
        ids = [encoding.encode(normalize(text), allowed_special="all") for text in texts]
        found[name] = {"special": encoding._special_tokens, "ids": ids}
    return {"texts": texts, "encodings": found}


def write(name, value):
    (HERE / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def stored():
    HERE.mkdir(exist_ok=True)
    texts = NASTY + list(random_texts(7, 60))
    found = {}
    for name, model in models():
        model_bytes = model.SerializeToString()
        (HERE / f"{name}.model.gz").write_bytes(gzip.compress(model_bytes, mtime=0))
        found[name] = cases(model, texts)
        print(name, len(model.pieces), len(model_bytes), (HERE / f"{name}.model.gz").stat().st_size)
    write("pieces.json", found)
    write("folders.json", folder_cases())
    write("marian.json", marian_cases(NASTY[::2] + ["☃☃ ☃", "🦀 crab 🦀🦀"]))
    write("tiktoken.json", rank_cases(NASTY + list(random_texts(8, 10))))


def random_cases(seed, count, output):
    texts = list(random_texts(int(seed), int(count)))
    found = {}
    for path in sorted(HERE.glob("*.model.gz")):
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString(gzip.decompress(path.read_bytes()))
        found[path.name.removesuffix(".model.gz")] = cases(model, texts)
    pathlib.Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["random"]:
        random_cases(*sys.argv[2:])
    else:
        stored()
