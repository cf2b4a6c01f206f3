"""Recurrent layers, with PyTorch. `generate.py` runs it."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from common import case, draw, fill, write


def recurrent():
    """The output of a case is a list of all that the layer gives: the outputs, then the last states."""
    cases = []
    for label, kind, how, x, started, *lengths in [
        ("rnn", nn.RNN, {}, (4, 2, 3), False),
        ("rnn_relu", nn.RNN, {"nonlinearity": "relu", "num_layers": 2}, (3, 2, 2), True),
        ("rnn_both_ways", nn.RNN, {"bidirectional": True, "bias": False}, (3, 2, 2), True),
        ("rnn_unbatched", nn.RNN, {"num_layers": 2}, (4, 3), True),
        ("rnn_one_step", nn.RNN, {}, (1, 1, 2), False),
        ("lstm", nn.LSTM, {}, (4, 2, 3), False),
        ("lstm_started", nn.LSTM, {"batch_first": True}, (2, 4, 3), True),
        ("lstm_deep", nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}, (2, 3, 2), True),
        ("lstm_no_bias", nn.LSTM, {"bias": False}, (3, 2, 2), False),
        ("lstm_projected", nn.LSTM, {"proj_size": 2, "num_layers": 2, "bidirectional": True}, (3, 2, 3), True),
        ("lstm_unbatched", nn.LSTM, {"bidirectional": True}, (3, 2), True),
        ("gru", nn.GRU, {}, (4, 2, 3), False),
        ("gru_started", nn.GRU, {"batch_first": True}, (2, 4, 3), True),
        ("gru_deep", nn.GRU, {"num_layers": 2, "bidirectional": True}, (3, 2, 2), True),
        ("gru_no_bias", nn.GRU, {"bias": False, "num_layers": 3}, (2, 1, 2), False),
        ("gru_unbatched", nn.GRU, {}, (3, 2), True),
        ("rnn_lengths", nn.RNN, {}, (4, 3, 2), False, [2, 4, 1]),
        ("rnn_lengths_both_ways", nn.RNN, {"bidirectional": True, "batch_first": True}, (3, 4, 2), True, [1, 4, 3]),
        ("lstm_lengths", nn.LSTM, {"batch_first": True}, (2, 4, 3), True, [4, 2]),
        ("lstm_lengths_deep", nn.LSTM, {"num_layers": 2, "bidirectional": True}, (4, 3, 2), True, [3, 1, 4]),
        ("lstm_lengths_projected", nn.LSTM, {"proj_size": 2, "bidirectional": True}, (3, 2, 3), False, [2, 3]),
        ("lstm_lengths_short", nn.LSTM, {"bidirectional": True}, (5, 2, 3), False, [2, 3]),
        ("gru_lengths", nn.GRU, {}, (4, 2, 3), False, [1, 4]),
        ("gru_lengths_deep", nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}, (3, 3, 2), True, [2, 3, 1]),
    ]:
        name, hidden = f"recurrent_{label}", 3
        module = fill(kind(x[-1], hidden, **how), name)
        inputs = [draw(f"{name}/x", x)]
        if started:
            batch = () if len(x) == 2 else (x[0] if how.get("batch_first") else x[1],)
            layers = how.get("num_layers", 1) * (2 if how.get("bidirectional") else 1)
            inputs.append(draw(f"{name}/h", (layers, *batch, how.get("proj_size") or hidden)))
            if kind is nn.LSTM:
                inputs.append(draw(f"{name}/c", (layers, *batch, hidden)))

        def run(x, h=None, c=None):
            first = how.get("batch_first", False)
            if lengths:
                x = pack_padded_sequence(x, torch.tensor(lengths[0]), batch_first=first, enforce_sorted=False)
            y, state = module(x, h if c is None else (h, c))
            if lengths:
                y, _ = pad_packed_sequence(y, batch_first=first, total_length=inputs[0].shape[1 if first else 0])
            state = state if isinstance(state, tuple) else (state,)
            return torch.cat([t.flatten() for t in (y, *state)])

        attrs = {"layer": kind.__name__, "input_size": x[-1], "hidden_size": hidden} | how | ({"lengths": lengths[0]} if lengths else {})
        cases.append(case("recurrent", name, run, *inputs, parameters=list(module.named_parameters()), **attrs))
    write("recurrent", cases)
