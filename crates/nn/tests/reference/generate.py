"""Writes the reference values of this folder with PyTorch: a script a topic, each of which writes the JSON files of its
name.

Not run by the tests: they read the files that this wrote, which are committed and say with which versions they were
made. To write them again, all or some topics:

    pip install torch torchvision numpy safetensors optax transformers scikit-learn nltk sacrebleu jiwer && python generate.py [TOPIC ...]
"""

import importlib
import sys

import torch

TOPICS = [
    "layers",
    "spatial",
    "batch_norm",
    "far_means",
    "recurrent",
    "norms",
    "attention",
    "attention_blocks",
    "transformer",
    "experts",
    "positions",
    "autocast",
    "half",
    "activations",
    "losses",
    "losses_classes",
    "losses_numbers",
    "losses_vectors",
    "preference",
    "linear_cross_entropy",
    "ctc",
    "metrics",
    "error_rates",
    "optimizers",
    "optimizers_adaptive",
    "optimizers_optax",
    "muon",
    "schedules",
    "schedules_plain",
    "plateau",
    "initial_values",
    "weights",
]

if __name__ == "__main__":
    torch.set_num_threads(1)
    for topic in sys.argv[1:] or TOPICS:
        getattr(importlib.import_module(topic), topic)()
