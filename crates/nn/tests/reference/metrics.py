"""Metrics, with scikit-learn, BLEU with NLTK and sacrebleu, FID and Inception Score with torch-fidelity. `generate.py` runs
it; it needs `pip install scikit-learn nltk sacrebleu torch-fidelity`.

A case has the inputs of several batches as one, the mask of what counts, and the value over what does: a number, a list
or a matrix. Scores of curves stand on multiples of 1/199, the thresholds, so that they are exact.
"""

import math

import nltk
import numpy as np
import sacrebleu
import sklearn
import sklearn.metrics as M
import torch
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_isc import isc_features_to_metric
from nltk.translate.bleu_score import SmoothingFunction, corpus_bleu

from common import MADE_WITH, rng, tensor, write

ROWS, CLASSES, LABELS = 40, 5, 3


def metrics():
    cases = []
    mask = rng("metrics/mask").uniform(size=ROWS) < 0.7

    def add(op, name, inputs, value, **attrs):
        assert not np.any(np.isnan(value)), name
        inputs = [tensor(torch.tensor(i)) for i in inputs]
        cases.append({"op": op, "name": name, "attrs": attrs, "inputs": inputs, "mask": tensor(torch.tensor(mask)), "value": np.asarray(value, dtype=float).tolist()})

    averages = ("micro", "macro", "weighted", "none")
    logits = np.round(rng("metrics/logits").normal(size=(ROWS, CLASSES)), 3).astype(np.float32)
    # The last class is never the target, the one before never predicted, and one is neither.
    target = rng("metrics/target").integers(0, CLASSES - 1, ROWS)
    logits[:, CLASSES - 2] -= 20
    wide = np.concatenate([logits, np.full((ROWS, 1), -50, np.float32)], 1)
    y, p = target[mask], logits.argmax(1)[mask]
    scores = {
        "precision": lambda a: M.precision_score(y, p, average=a, zero_division=0),
        "recall": lambda a: M.recall_score(y, p, average=a, zero_division=0),
        "f1": lambda a: M.f1_score(y, p, average=a, zero_division=0),
        "jaccard": lambda a: M.jaccard_score(y, p, average=a, zero_division=0),
    }
    for op, score in scores.items():
        for average in averages:
            value = score(None if average == "none" else average)
            given = logits
            if average != "none":  # a class that is not there changes no average
                given = wide
            add(op, f"{op}_{average}", [given, target], value, task="multiclass", classes=given.shape[1], average=average)
        add(op, f"{op}_labels", [logits.argmax(1), target], score("macro"), task="multiclass", classes=CLASSES, average="macro")
    add("accuracy", "accuracy", [logits, target], M.accuracy_score(y, p), task="multiclass", classes=CLASSES, average="micro")
    add("accuracy", "accuracy_macro", [wide, target], M.balanced_accuracy_score(y, p), task="multiclass", classes=CLASSES + 1, average="macro")
    for k in (2, 3, 5):
        value = M.top_k_accuracy_score(y, logits[mask], k=k, labels=range(CLASSES))
        add("accuracy", f"accuracy_top{k}", [logits, target], value, task="multiclass", classes=CLASSES, average="micro", top_k=k)
    for normalize, name in ((None, "none"), ("true", "target"), ("pred", "predicted"), ("all", "all")):
        value = M.confusion_matrix(y, p, labels=range(CLASSES), normalize=normalize)
        add("confusion", f"confusion_{name}", [logits, target], value, task="multiclass", classes=CLASSES, normalize=name)

    grid = lambda name, shape: (rng(name).integers(0, 200, shape) / 199).astype(np.float32)
    score, yes = grid("metrics/score", (ROWS,)), rng("metrics/yes").integers(0, 2, ROWS)
    y, s = yes[mask], score[mask]
    for threshold in (0.5, 0.2):
        p = s > threshold
        for op, f in (("accuracy", M.accuracy_score), ("precision", M.precision_score), ("recall", M.recall_score), ("f1", M.f1_score), ("jaccard", M.jaccard_score), ("confusion", M.confusion_matrix)):
            add(op, f"{op}_binary_{threshold}", [score, yes], f(y, p), task="binary", threshold=threshold)
    add("auroc", "auroc_binary", [score, yes], M.roc_auc_score(y, s), task="binary")
    add("average_precision", "average_precision_binary", [score, yes], M.average_precision_score(y, s), task="binary")

    score, yes = grid("metrics/labels/score", (ROWS, LABELS)), rng("metrics/labels/yes").integers(0, 2, (ROWS, LABELS))
    y, s = yes[mask], score[mask]
    for average in averages:
        sk = None if average == "none" else average
        for op, f in (("precision", M.precision_score), ("recall", M.recall_score), ("f1", M.f1_score), ("jaccard", M.jaccard_score)):
            add(op, f"{op}_multilabel_{average}", [score, yes], f(y, s > 0.5, average=sk, zero_division=0), task="multilabel", classes=LABELS, average=average)
        for op, f in (("auroc", M.roc_auc_score), ("average_precision", M.average_precision_score)):
            add(op, f"{op}_multilabel_{average}", [score, yes], f(y, s, average=sk), task="multilabel", classes=LABELS, average=average)

    # One class against the others: sums to one, on the grid.
    parts = rng("metrics/parts").integers(0, 67, (ROWS, 2))
    score = (np.stack([parts[:, 0], parts[:, 1], 199 - parts.sum(1)], 1) / 199).astype(np.float32)
    target = rng("metrics/parts/target").integers(0, 3, ROWS)
    y, s = target[mask], score[mask]
    for average in ("macro", "weighted", "micro", "none"):
        sk = None if average == "none" else average
        add("auroc", f"auroc_{average}", [score, target], M.roc_auc_score(np.eye(3)[y], s, average=sk), task="multiclass", classes=3, average=average)
        add("average_precision", f"average_precision_{average}", [score, target], M.average_precision_score(np.eye(3)[y], s, average=sk), task="multiclass", classes=3, average=average)

    x, t = (np.round(rng(f"metrics/{name}").normal(size=(ROWS, 3)), 3).astype(np.float32) for name in "xt")
    t = (t + x).astype(np.float32)
    xm, tm = x[mask].astype(float), t[mask].astype(float)
    add("mean", "mean", [x], xm.mean())
    add("mse", "mse", [x, t], M.mean_squared_error(tm, xm))
    add("rmse", "rmse", [x, t], math.sqrt(M.mean_squared_error(tm.ravel(), xm.ravel())))
    add("mae", "mae", [x, t], M.mean_absolute_error(tm, xm))
    add("r2", "r2_outputs", [x, t], M.r2_score(tm, xm))
    add("r2", "r2", [x[:, 0], t[:, 0]], M.r2_score(tm[:, 0], xm[:, 0]))
    for name, mean in (("frechet", 0), ("frechet_far_mean", 1000)):
        far = [(values + np.float32(mean)).astype(np.float32) for values in (x, t)]
        xm, tm = (values[mask].astype(float) for values in far)
        a, b = np.cov(xm, rowvar=False), np.cov(tm, rowvar=False)
        roots = np.sqrt(np.linalg.eigvals(a @ b)).sum()
        add("frechet", name, far, ((xm.mean(0) - tm.mean(0)) ** 2).sum() + np.trace(a) + np.trace(b) - 2 * roots)
    # torch-fidelity's functions, of few and of many features. Its splits are contiguous and of equal length.
    for name, features in (("frechet_torch_fidelity", 6), ("frechet_more_features_than_samples", 64)):
        real, drawn = (np.round(rng(f"metrics/{name}/{i}").normal(i, 1 + i, (ROWS, features)), 3).astype(np.float32) for i in range(2))
        statistics = [fid_features_to_statistics(torch.tensor(values[mask], dtype=torch.float64)) for values in (real, drawn)]
        add("frechet", name, [real, drawn], fid_statistics_to_metric(*statistics, False)["frechet_inception_distance"])
    logits = np.round(rng("metrics/inception_score").normal(0, 3, (ROWS, 8)), 3).astype(np.float32)
    for splits in (1, 3):
        split = np.full(ROWS, -1)
        counted = np.flatnonzero(mask)[: mask.sum() // splits * splits]
        split[counted] = np.arange(len(counted)) % splits
        ordered = torch.tensor(logits[counted[np.argsort(split[counted], kind="stable")]])
        score = isc_features_to_metric(ordered, splits=splits, shuffle=False)
        add("inception_score", f"inception_score_{splits}", [logits, split], score["inception_score_mean"], splits=splits)
    add("inception_score", "inception_score_deviation", [logits, split], score["inception_score_std"], splits=3, deviation=True)
    logits = np.round(rng("metrics/tokens").normal(size=(ROWS, 4, 6)), 3).astype(np.float32)
    tokens = rng("metrics/tokens").integers(0, 6, (ROWS, 4))
    log_p = torch.tensor(logits[mask], dtype=torch.float64).log_softmax(-1)
    nll = M.log_loss(tokens[mask].ravel(), log_p.exp().numpy().reshape(-1, 6), labels=range(6))
    add("perplexity", "perplexity", [logits, tokens], math.exp(nll))

    # Few tokens, so that n-grams repeat. 0 ends a candidate, and what stands behind it does not count.
    random = rng("metrics/token_bleu")
    length = lambda: int(random.integers(1, 10))
    references = [random.integers(1, 5, length()).tolist() for _ in range(ROWS)]
    candidates = [[w if random.uniform() < 0.8 else int(random.integers(1, 5)) for w in text[: length()]] for text in references]
    candidates[0] = []
    ended = [text + [0] + random.integers(1, 5, 10 - len(text)).tolist() for text in candidates]
    texts = lambda rows: [" ".join(map(str, row)) for row, kept in zip(rows, mask) if kept]
    for smooth, method in ((False, "none"), (True, "add-k")):
        value = sacrebleu.corpus_bleu(texts(candidates), [texts(references)], smooth_method=method, smooth_value=1 if smooth else None, tokenize="none", force=True)
        add("token_bleu", f"token_bleu_{smooth}", [ended, [text + [-100] * (9 - len(text)) for text in references]], value.score / 100, smooth=smooth)

    # NLTK takes a candidate without any n-gram for one with one that has no match; here each has some.
    random = rng("metrics/bleu")
    references = [[random.integers(0, 9, random.integers(5, 14)).tolist() for _ in range(random.integers(1, 4))] for _ in range(8)]
    changed = lambda text: [w if random.uniform() < 0.8 else int(random.integers(0, 9)) for w in text[: random.integers(4, 15)]]
    candidates = [changed(texts[0]) for texts in references]
    for n, smooth in ((4, False), (2, False), (4, True)):
        method = SmoothingFunction().method2 if smooth else SmoothingFunction().method0
        value = corpus_bleu(references, candidates, weights=[1 / n] * n, smoothing_function=method)
        cases.append({"op": "bleu", "name": f"bleu_{n}_{smooth}", "attrs": {"n_gram": n, "smooth": smooth}, "candidates": candidates, "references": references, "value": value})
    MADE_WITH.update(sklearn=sklearn.__version__, nltk=nltk.__version__, sacrebleu=sacrebleu.__version__)
    write("metrics", cases)
    del MADE_WITH["sklearn"], MADE_WITH["nltk"], MADE_WITH["sacrebleu"]
