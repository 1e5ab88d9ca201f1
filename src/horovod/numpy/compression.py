# SPDX-License-Identifier: Apache-2.0
"""Compressors for NumPy arrays."""

from horovod.common.compression import BF16Compressor as BF16Compressor
from horovod.common.compression import Compression as Compression
from horovod.common.compression import Compressor as Compressor
from horovod.common.compression import FP16Compressor as FP16Compressor
from horovod.common.compression import NoneCompressor as NoneCompressor
