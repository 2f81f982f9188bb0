"""Train with JAX. The loader gives batches of NumPy arrays, which become arrays of the device.

`stocached.Loader` needs no torch. Its workers are threads here, which read, decode and augment in C. So the process
never forks, which JAX does not support.

    pip install jax
    python jax_training.py FOLDER [--epochs 3]

FOLDER has a folder of JPEG files for each class. The program prints, for 96 pictures:

    epoch 1: loss 2.09, 0 of 96 samples from the cache
    epoch 2: loss 1.89, 96 of 96 samples from the cache
    epoch 3: loss 1.76, 96 of 96 samples from the cache
"""

import argparse

import jax
import jax.numpy as jnp
from stocached import Loader, image


def loss(weights: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(images.reshape(len(images), -1) @ weights)
    return -scores[jnp.arange(len(labels)), labels].mean()


@jax.jit
def step(weights: jax.Array, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, gradient = jax.value_and_grad(loss)(weights, images, labels)
    return weights - 0.01 * gradient, value


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    dataset = image.Folder(options.folder, size=32)
    augment = image.Compose([image.RandomHorizontalFlip(), image.ToDtype("float32", scale=True)])
    # drop_last: jit compiles once for each shape of a batch.
    loader = Loader(
        dataset,
        batch_size=16,
        shuffle=True,
        seed=1,
        num_workers=2,
        size="1GiB",
        augment=augment,
        drop_last=True,
    )
    weights = jnp.zeros((32 * 32 * 3, len(dataset.classes)))
    for epoch in range(options.epochs):
        before, losses = loader.stats(), []
        for batch in loader:
            # On a CPU, JAX may use the memory of the batch itself. The loader leaves it alone as long as JAX has it.
            images, labels = jax.device_put(batch)
            weights, value = step(weights, images, labels)
            losses.append(value)  # the value waits in the device: float(value) here would stop the pipeline
        done = loader.stats() - before
        print(
            f"epoch {epoch + 1}: loss {float(jnp.stack(losses).mean()):.2f}, "
            f"{done.hits} of {done.samples} samples from the cache"
        )
    loader.close()


if __name__ == "__main__":
    main()
