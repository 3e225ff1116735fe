"""Conversions there and back, and outputs of transformers' own models on the files that this project writes."""

import pathlib

import numpy as np
import pytest

import bert_tf
from bert_tf.conversion import convert
from bert_tf.store.bundle import CheckpointReader
from bert_tf.system.text_files import read_json

# Float32 rounding stays below this share of the largest output; another activation gives a hundred times more.
TOLERANCE = 1e-4


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


def equal_to_transformers(folder) -> set[str]:
    """The names of the outputs that are the same in transformers' model of a directory and in ours."""
    torch = pytest.importorskip("torch", reason="torch is not installed (requirements-dev.txt)")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (requirements-dev.txt)")
    (architecture,) = read_json(str(pathlib.Path(folder) / "config.json"))["architectures"]
    task = architecture.partition("For")[2]
    ours = "ElectraDiscriminator" if architecture == "ElectraForPreTraining" else f"BertFor{task}"
    ours = getattr(bert_tf, ours).from_pretrained(str(folder))
    theirs = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32).eval()
    inputs = example_inputs(ours.config)
    names = {"input_ids": "input_ids", "attention_mask": "input_mask"}
    names |= {"token_type_ids": "segment_ids"} if ours.config.type_vocab_size else {}
    with torch.no_grad():
        arguments = {name: torch.from_numpy(inputs[own].astype(np.int64)) for name, own in names.items()}
        expected = {**theirs.base_model(**arguments), **theirs(**arguments)}
    read = {name: inputs[name] for name in ours.known_inputs if name in inputs}
    encoded, outputs = ours.encode(inputs), ours(read)
    for name, value in expected.items():
        found = getattr(encoded if name in ("last_hidden_state", "pooler_output") else outputs, name)
        limit = TOLERANCE * max(1.0, np.abs(value.numpy()).max())
        np.testing.assert_allclose(found, value.numpy(), atol=limit, rtol=0, err_msg=name)
    return set(expected)


def there_and_back(prefix: pathlib.Path, folder: pathlib.Path, outputs: int, files: tuple, part=None, own="") -> None:
    """tf1 -> huggingface -> tf1 -> bert_tf -> huggingface: the same bytes, and outputs of transformers on the way.

    Of the original's checkpoint the variables that begin with `own` go with the part.
    """
    source = prefix.parent
    for number, format in enumerate(("huggingface", "tf1", "bert_tf", "huggingface")):
        asked = part if format == "huggingface" or not number else None
        report = convert.convert(str(source), str(folder / f"{number}"), format, part=asked, do_lower_case=True)
        source = folder / f"{number}"
        assert not report.missing and (not part or "bert/" not in report.text())
        if format == "huggingface":
            assert len(equal_to_transformers(source)) == outputs
    for file in ("model.safetensors", "config.json", *files):
        assert (folder / "0" / file).read_bytes() == (source / file).read_bytes(), file
    old, new = (CheckpointReader(str(path)) for path in (prefix, folder / "1" / "bert_model.ckpt"))
    shapes = {name: shape for name, shape in old.get_variable_to_shape_map().items() if name.startswith(own)}
    assert new.get_variable_to_shape_map() == shapes
    for name in shapes:
        np.testing.assert_array_equal(new.get_tensor(name), old.get_tensor(name), err_msg=name)
