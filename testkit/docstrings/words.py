# SPDX-License-Identifier: Apache-2.0
"""Words of each framework that the table's texts contain as `$tensor` and so on."""

from __future__ import annotations

_PLAIN = {"tensor": "tensor", "a_tensor": "a tensor", "tensors": "tensors", "list": ".tolist()"}

# `full` makes a float tensor of two equal values, `rows` one with two rows, `ints` one with two integers.
WORDS: dict[str, dict[str, str]] = {
    "horovod": _PLAIN,
    "shared": _PLAIN,
    "torch": {
        **_PLAIN,
        "full": "torch.zeros(2) + hvd.rank()",
        "rows": "torch.tensor([[1.0], [2.0]])",
        "ints": "torch.tensor([10, 20])",
        "other": "torch.zeros(2)",
    },
    "numpy": {
        "tensor": "array",
        "a_tensor": "an array",
        "tensors": "arrays",
        "list": ".tolist()",
        "full": "np.zeros(2) + hvd.rank()",
        "rows": "np.array([[1.0], [2.0]])",
        "ints": "np.array([10, 20])",
        "other": "np.zeros(2)",
    },
    "jax": {
        "tensor": "array",
        "a_tensor": "an array",
        "tensors": "arrays",
        "list": ".tolist()",
        "full": "jnp.zeros(2) + hvd.rank()",
        "rows": "jnp.array([[1.0], [2.0]])",
        "ints": "jnp.array([10, 20])",
        "other": "jnp.zeros(2)",
    },
    "tensorflow": {
        **_PLAIN,
        "list": ".numpy().tolist()",
        "full": "tf.zeros(2) + hvd.rank()",
        "rows": "tf.constant([[1.0], [2.0]])",
        "ints": "tf.constant([10, 20])",
        "other": "tf.zeros(2)",
    },
    "keras": {**_PLAIN, "list": ".tolist()"},
    "mxnet": {
        "tensor": "NDArray",
        "a_tensor": "an NDArray",
        "tensors": "NDArrays",
        "list": ".asnumpy().tolist()",
        "full": "mx.nd.zeros(2) + hvd.rank()",
        "rows": "mx.nd.array([[1.0], [2.0]])",
        "ints": "mx.nd.array([10, 20], dtype='int32')",
        "other": "mx.nd.zeros(2)",
    },
    "data": _PLAIN,
    "ray": _PLAIN,
}
