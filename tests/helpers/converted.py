"""Conversions there and back, and inputs to compare outputs for."""

import pathlib

import numpy as np

from bert_tf.conversion import convert
from bert_tf.store.bundle import CheckpointReader


def example_inputs(config, seed=0):
    generator = np.random.default_rng(seed)
    length = min(24, config.max_length)
    lengths = np.linspace(length, max(1, length // 3), 3).astype(int)[:, None]
    positions = np.arange(length)[None, :]
    mask = positions < lengths
    arrays = {"input_ids": generator.integers(0, config.vocab_size, mask.shape) * mask, "input_mask": mask}
    arrays |= {"segment_ids": (positions >= lengths // 2) * mask * (config.type_vocab_size > 1)}
    arrays |= {"masked_lm_positions": np.broadcast_to(positions, mask.shape)}
    return {name: np.ascontiguousarray(value, np.int32) for name, value in arrays.items()}


def assert_same_bits(arrays, expected):
    assert set(arrays) == set(expected)
    for name, value in expected.items():
        assert (arrays[name].dtype, arrays[name].shape) == (value.dtype, value.shape), name
        assert arrays[name].tobytes() == value.tobytes(), name


def there_and_back(prefix: pathlib.Path, folder: pathlib.Path, files: tuple, part=None, own="") -> None:
    """tf1 -> huggingface -> tf1 -> bert_tf -> huggingface: the same bytes.

    Of the original's checkpoint the variables that begin with `own` go with the part.
    """
    source = prefix.parent
    for number, format in enumerate(("huggingface", "tf1", "bert_tf", "huggingface")):
        asked = part if format == "huggingface" or not number else None
        report = convert.convert(str(source), str(folder / f"{number}"), format, part=asked, do_lower_case=True)
        source = folder / f"{number}"
        assert not report.missing and (not part or "bert/" not in report.text())
    for file in ("model.safetensors", "config.json", *files):
        assert (folder / "0" / file).read_bytes() == (source / file).read_bytes(), file
    old, new = (CheckpointReader(str(path)) for path in (prefix, folder / "1" / "bert_model.ckpt"))
    shapes = {name: shape for name, shape in old.get_variable_to_shape_map().items() if name.startswith(own)}
    assert new.get_variable_to_shape_map() == shapes
    for name in shapes:
        np.testing.assert_array_equal(new.get_tensor(name), old.get_tensor(name), err_msg=name)
