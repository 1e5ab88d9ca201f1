# SPDX-License-Identifier: Apache-2.0
"""Input pipelines on processes of their own: tf.data's service, started and found by Horovod."""
