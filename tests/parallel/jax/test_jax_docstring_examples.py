# SPDX-License-Identifier: Apache-2.0
"""Examples in the docstrings of the JAX API run and give what they say."""

from harness.docstring_examples import run_examples
from harness.worlds import on_all_ranks


@on_all_ranks("shm2")
def test_examples_of_the_jax_api():
    import optax
    from harness.jax_door import hvd, jax, jnp

    found = run_examples(hvd, [hvd, hvd.elastic], jax=jax, jnp=jnp, optax=optax)
    assert found == [], found
