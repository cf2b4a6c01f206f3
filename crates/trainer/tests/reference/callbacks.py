"""Reference values for the callbacks, by NumPy: `python callbacks.py` writes callbacks.json next to this file."""

import json
import math
from pathlib import Path

import numpy as np

SAMPLES, FEATURES = 4, 8
LR, MOMENTUM = 0.01, 0.9
DEVIATIONS, WINDOW, WARMUP = 4.0, 8, 4


def rows(scale):
    """The samples of a batch."""
    return scale * (1 + 0.1 * (np.arange(SAMPLES * FEATURES).reshape(SAMPLES, FEATURES) % 5))


def most(window):
    window = np.array(window[-WINDOW:])
    mean, deviation = window.mean(), window.std(ddof=1)
    return mean + DEVIATIONS * max(deviation, 1e-3 * abs(mean))


def spikes(scales, every):
    """Gradient descent on mean(sum(w x) / 8), with steps that are skipped."""
    w, buffer = np.ones(FEATURES), np.zeros(FEATURES)
    windows, skipped, margin = ([], []), [], math.inf
    for number, start in enumerate(range(0, len(scales), every), 1):
        x = np.concatenate([rows(scale) for scale in scales[start : start + every]])
        gradient = x.mean(0) / FEATURES
        measured = [(x @ w).mean() / FEATURES, np.linalg.norm(gradient)]
        finite = np.isfinite(measured).all()
        skip, entering = not finite, measured
        if finite and len(windows[0]) >= WARMUP:
            limits = [most(window) for window in windows]
            skip = any(m > limit for m, limit in zip(measured, limits))
            margin = min([margin] + [abs(m / limit - 1) for m, limit in zip(measured, limits)])
            entering = [min(m, limit) for m, limit in zip(measured, limits)]
        if finite:
            for window, value in zip(windows, entering):
                window.append(value)
        if skip:
            skipped.append(number)
        else:
            buffer = MOMENTUM * buffer + gradient
            w = w - LR * buffer
    assert margin > 1e-3, margin
    return {"every": every, "skipped": skipped, "weights": w.tolist()}


def curve(losses, threshold):
    """The smoothed losses of a learning rate finder, and where they fall fastest."""
    mean, smooth, best = 0.0, [], math.inf
    for i, loss in enumerate(losses, 1):
        mean = 0.98 * mean + 0.02 * loss
        value = mean / (1 - 0.98**i)
        if not math.isfinite(value) or (i > 1 and value > threshold * best):
            break
        best = min(best, value)
        smooth.append(value)
    rates = np.logspace(-6, 0, len(losses))[: len(smooth)]
    steepest = int(np.gradient(np.array(smooth[10:-1])).argmin()) + 10
    return {"losses": losses, "smooth": smooth, "rate": float(rates[steepest])}


scales = [round(1 + 0.05 * math.sin(3 * t), 4) for t in range(48)]
scales[12], scales[13], scales[30] = 50.0, 60.0, 1.6
scales[36:] = [round(2.5 * scale, 4) for scale in scales[36:]]
noise = np.random.default_rng(0)
share = np.arange(100) / 99
losses = 2.3 - 1.8 / (1 + np.exp(-(share - 0.55) * 25)) + 12 * np.clip(share - 0.8, 0, None) ** 2 * 40
losses = [round(float(loss), 5) for loss in losses + 0.02 * noise.standard_normal(100)]
gaps = scales[:25] + [math.nan] + scales[26:]
document = {
    "scales": scales,
    "not_finite": 25,
    # Every batch, pairs of batches, and every second batch.
    "spikes": [spikes(gaps, 1), spikes(gaps, 2), spikes(gaps[::2], 1)],
    "curve": curve(losses, 4.0),
}
Path(__file__).with_suffix(".json").write_text(json.dumps(document) + "\n")
