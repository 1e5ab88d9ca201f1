# SPDX-License-Identifier: Apache-2.0
"""The changes that a tf.keras program needs to run on several ranks, in the usual order.

horovodrun -np 2 python examples/keras/tensorflow_tutorial.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "numpy"))

try:
    import digits_data
    import tensorflow as tf

    import horovod.tensorflow.keras as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[tensorflow]'") from None

OUTPUT = Path("example-output/keras-tutorial")

hvd.init()

# Each rank of a host uses one of its GPUs, and only as much of its memory as needed.
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

digits = digits_data.load()
images = digits.train_images.reshape(-1, 8, 8, 1).astype("float32")
labels = digits.train_labels.astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(1000, seed=hvd.rank()).batch(32)
test_images = digits.test_images.reshape(-1, 8, 8, 1).astype("float32")

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(16, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Dropout(0.25),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)

# Each step uses the batches of all ranks, so it may be longer.
scaled_lr = 0.001 * hvd.size()
opt = tf.keras.optimizers.Adam(scaled_lr)

# Gradients are averaged over the ranks before they are applied.
opt = hvd.DistributedOptimizer(opt)

model.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])

callbacks = [
    # Start all ranks with the weights of rank 0.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    # Average metrics over all ranks. Put callbacks that use metrics after this one.
    hvd.callbacks.MetricAverageCallback(),
    # Start with short steps, because long ones can diverge at the beginning.
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
]

# Only one rank writes files and logs, because two would overwrite each other's.
if hvd.rank() == 0:
    OUTPUT.mkdir(parents=True, exist_ok=True)
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(str(OUTPUT / "checkpoint-{epoch}.keras")))

verbose = 2 if hvd.rank() == 0 else 0

# The ranks share the steps of an epoch.
model.fit(
    dataset,
    steps_per_epoch=60 // hvd.size(),
    callbacks=callbacks,
    epochs=4,
    validation_data=(test_images, digits.test_labels),
    verbose=verbose,
)

if hvd.rank() == 0:
    model.save(OUTPUT / "digits.keras")
