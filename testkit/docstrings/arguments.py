# SPDX-License-Identifier: Apache-2.0
"""Text for arguments that several functions have. An entry of the table may have a text of its own."""

from __future__ import annotations

ARGUMENTS = {
    "average": "Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.",
    "compression": "hvd.Compression.none, hvd.Compression.fp16 or hvd.Compression.bf16 (the type in which "
    "floating-point values are sent), or your own subclass of hvd.Compressor.",
    "name": "Name under which the ranks match this operation. Operations without a name match in the order of the "
    "calls in their process set.",
    "op": "hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.",
    "postscale_factor": "Factor by which the reduced values are multiplied.",
    "prescale_factor": "Factor by which each rank's values are multiplied before they are reduced.",
    "process_set": "The ranks that take part. By default all ranks of the job.",
    "root_rank": "The rank that sends its values, counted among all ranks of the job.",
    "save_weights_only": "As in keras.callbacks.ModelCheckpoint.",
    "tensor": "The $tensor that this rank contributes. It does not change.",
    "tensors": "List of $tensors that this rank contributes. They do not change.",
    "verbose": "Has no effect.",
}
