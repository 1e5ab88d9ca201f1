# SPDX-License-Identifier: Apache-2.0
"""Input pipelines in separate processes: tf.data's service, started and located by Horovod."""
