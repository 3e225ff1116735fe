"""The order of the records in an epoch, and which rows of each batch a worker reads: those of its replicas."""

import dataclasses

import numpy as np


def permutation(length: int, seed: int, epoch: int, stream: int) -> np.ndarray:
    """A permutation of range(length) that depends on nothing but its arguments, in every NumPy version."""
    # The generator increments the first word of the counter, so different epochs and streams never overlap.
    generator = np.random.Philox(
        key=np.array([seed % 2**64, 0], np.uint64), counter=np.array([0, 0, stream, epoch], np.uint64)
    )
    return np.argsort(generator.random_raw(length), kind="stable")


@dataclasses.dataclass(frozen=True)
class Share:
    """Consecutive parts of each batch, one for each replica of a worker. By default the whole batch, as one part.

    Attributes:
      parts: the equal parts of a batch: the replicas of all workers.
      first: the number of the first part of the share. count: its parts.
    """

    parts: int = 1
    first: int = 0
    count: int = 1

    def part_size(self, batch_size: int) -> int:
        """The rows of a part.

        Raises:
          ValueError: the parts of a batch would not be equal.
        """
        if batch_size % self.parts:
            raise ValueError(f"a batch of {batch_size} rows can't be divided into {self.parts} equal parts")
        return batch_size // self.parts

    def slices(self, batch_size: int) -> list[slice]:
        """The rows of each part of the share in a batch."""
        size = self.part_size(batch_size)
        return [slice(part * size, (part + 1) * size) for part in range(self.first, self.first + self.count)]

    def rows(self, batch_size: int) -> slice:
        """All rows of the share in a batch."""
        slices = self.slices(batch_size)
        return slice(slices[0].start, slices[-1].stop)


WHOLE = Share()


def parts_of_batches(dataset, share: Share):
    """The tf.data.Dataset of the parts of a share, from a dataset of whole batches {name: [B, ...]} with static B."""
    import tensorflow as tf

    def cut(batch):
        return {name: tf.stack([value[rows] for rows in share.slices(value.shape[0])]) for name, value in batch.items()}

    return dataset.map(tf.autograph.experimental.do_not_convert(cut)).unbatch()
