"""PyTorch weight files as shapes and a reader: safetensors, pickles, and shards of both."""

import posixpath
from collections.abc import Callable, Mapping

import numpy as np

from bert_tf.system.local_files import local_copies
from bert_tf.system.messages import some
from bert_tf.system.text_files import exists, read_json
from bert_tf.weights import safetensors_files

SHARD_INDEX_SUFFIX = ".index.json"


def open_file(file: str) -> tuple[dict, Callable[[str], np.ndarray], bool]:
    """Shapes, a reader, and whether any tensor has half precision."""
    if not exists(file):
        raise FileNotFoundError(f"{file} does not exist.")
    if file.endswith(".safetensors"):
        shapes, metadata, read = safetensors_files.open_safetensors(file)
        return shapes, read, "half_precision" in metadata
    return _open_pickle(file)


def _open_pickle(file: str) -> tuple[dict, Callable[[str], np.ndarray], bool]:
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"{file} is a pickle, which only PyTorch reads safely, and PyTorch is not installed. Use model.safetensors "
            "from the same source if there is one, or `pip install torch`."
        ) from None
    # weights_only: nothing but tensors; otherwise a pickle can run any code.
    tensors = None
    try:
        with local_copies([file]) as (local,):
            for mapped in (True, False):  # files older than PyTorch 1.6 can't be memory-mapped
                try:
                    tensors = torch.load(local, map_location="cpu", weights_only=True, mmap=mapped)
                    break
                except RuntimeError:
                    if not mapped:
                        raise
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, EOFError, ... for a bad file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{file} is not a PyTorch weight file that can be read safely, or it is damaged: {reason}"
        ) from None
    if not isinstance(tensors, Mapping) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise ValueError(f"{file} is not a plain dict of tensors (a state_dict) like pytorch_model.bin.")

    def read(name: str) -> np.ndarray:
        value = tensors[name]
        return (value.float() if value.is_floating_point() else value).numpy()

    half = any(value.dtype in (torch.float16, torch.bfloat16) for value in tensors.values())
    return {name: tuple(value.shape) for name, value in tensors.items()}, read, half


def open_shards(index_file: str) -> tuple[dict, Callable[[str], np.ndarray], bool]:
    folder = posixpath.dirname(index_file)
    index = read_json(index_file)
    if not isinstance(file_of := index.get("weight_map"), dict):
        raise ValueError(f"{index_file} is not an index of shards: it has no `weight_map`.")
    for name in file_of.values():
        if not isinstance(name, str) or posixpath.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(f"{index_file}: weight_map names {name!r:.80}, which is not a file in its folder.")
    names = sorted(set(file_of.values()))
    for name in names:
        if not exists(posixpath.join(folder, name)):
            raise FileNotFoundError(f"{index_file} names the shard {name}, which is missing in {folder or '.'}.")
    shards = {name: open_file(posixpath.join(folder, name)) for name in names}
    absent = [name for name, shard in file_of.items() if name not in shards[shard][0]]
    if absent:
        raise ValueError(f"{index_file}: {some(sorted(absent))} not in the shards that it names.")
    shapes = {name: shards[shard][0][name] for name, shard in file_of.items()}
    return shapes, lambda name: shards[file_of[name]][1](name), any(shard[2] for shard in shards.values())
