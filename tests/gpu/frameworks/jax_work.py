"""What JAX has on the GPU, and its results in words, for the scripts that look whether they stay the same."""

JAX_WORK = """
import jax, jax.numpy as jnp
big = [jax.random.bits(jax.random.PRNGKey(i), (1 << 27,), "uint32") for i in range(2)]
summed = jax.jit(lambda v: (v.sum(), v[::7].sum()))
weights = jax.random.normal(jax.random.PRNGKey(9), (1024, 1024))
step = jax.jit(lambda w: jnp.tanh(w @ w.T / 64))
def work():
    return str([tuple(map(int, summed(v))) for v in big]) + float(jnp.abs(step(weights)).sum()).hex()
"""
