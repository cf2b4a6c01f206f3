"""Writes gradient_flow.json: the gradients of the expressions in tests/it/gradient_flow.rs, by JAX. The tests do not run this.

    pip install jax && python gradient_flow.py
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

C = jnp.array([1.0 + 2.0j, -0.5 + 0.25j], jnp.complex64)
X = jnp.array([0.75, -1.5, 2.25], jnp.float32)


def complex_body(c, x):
    return jnp.real((c * x + 1.0) ** 3).sum() + jnp.abs(c).sum() * x


def complex_loss(c):
    return complex_body(c, 0.5) + complex_body(c, -1.25)


def doubled(t):
    """Doubles until the sum of magnitudes is above 50."""
    return lax.while_loop(lambda t: jnp.abs(t).sum() < 50.0, lambda t: t * 2.0, t)


stop = lax.stop_gradient
LOSSES = {
    "detach": lambda x: (x * doubled(stop(x))).sum(),
    "comparison": lambda x: (x * doubled((x > 0.0).astype(jnp.float32))).sum(),
    "integer": lambda x: (x * doubled(x.astype(jnp.int32).astype(jnp.float32))).sum(),
    "floor": lambda x: (x * doubled(jnp.floor(x))).sum(),
    "sign": lambda x: (x * doubled(jnp.sign(x))).sum(),
    "scan": lambda x: lax.scan(lambda c, _: (c * doubled(stop(c)).mean(), None), x, None, length=3)[0].sum(),
    "checkpoint": lambda x: (x * doubled(jax.checkpoint(lambda x: stop(x * 2.0))(x))).sum(),
    "cond": lambda x: (x * doubled(lax.cond(True, lambda x: stop(x), lambda x: stop(-x), x))).sum(),
    "call": lambda x: (x * doubled(stop(x * 3.0))).sum(),
    "barrier": lambda x: (x * 2.0 * doubled(stop(x))).sum(),
    "other carry": lambda x: (x * stop(lax.while_loop(lambda c: c[1].sum() < 50.0, lambda c: (c[0] + 1.0, c[1] + jnp.abs(x)),
                                                      (0.0, jnp.abs(x)))[0])).sum(),
}

if __name__ == "__main__":
    complex_gradient = jax.grad(complex_loss)(C)
    values = {
        "jax": jax.__version__,
        "complex capture": [[float(v.real), float(v.imag)] for v in complex_gradient],
        "losses": {name: [float(v) for v in jax.grad(loss)(X)] for name, loss in LOSSES.items()},
    }
    (Path(__file__).parent / "gradient_flow.json").write_text(json.dumps(values, indent=1) + "\n")
