"""Word and character error rates, with jiwer. `generate.py` runs it; it needs `pip install jiwer`."""

from importlib.metadata import version

import jiwer

from common import MADE_WITH, rng, write

WORDS = "the a cat sat on mat Zürich Γειά 東京 naïve it's".split()
TEXTS = [
    ("the cat sat", "the cat sat"), ("", "the cat"), ("cat", "the cat sat on"), ("the the cat sat", "cat sat"),
    ("a  b c", "a b  c d"), ("sitting", "kitten"), ("東京 cat", "東 京 cat"), ("naive Zurich", "naïve Zürich"),
    ("b a", "a b"), ("one two three four five six", "one"), ("x" * 40, "y" * 3), ("abcabc", "bcabca"),
]  # fmt: skip


def error_rates():
    """Each text is a prediction and its reference. A case has some texts and the rates over all of them."""
    random = rng("error_rates")
    texts = list(TEXTS)
    for _ in range(20):
        reference = [str(w) for w in random.choice(WORDS, random.integers(1, 9))]
        prediction = [w if random.uniform() < 0.7 else str(random.choice(WORDS)) for w in reference for _ in range(random.integers(0, 3))]
        texts.append((" ".join(prediction), " ".join(reference)))
    cases = []
    for name, some in [(f"text_{i}", [text]) for i, text in enumerate(texts)] + [("all", texts)]:
        predictions, references = ([text[i] for text in some] for i in (0, 1))
        cases.append({"name": name, "texts": some, "words": jiwer.wer(references, predictions), "characters": jiwer.cer(references, predictions)})
    MADE_WITH.update(jiwer=version("jiwer"))
    write("error_rates", cases)
    del MADE_WITH["jiwer"]
