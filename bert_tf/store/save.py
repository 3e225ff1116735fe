"""Writes models: weights in each format, and the files next to them, complete or not at all.

What can't be written is an error before TensorFlow's import.
"""

import dataclasses
import json
import os
import posixpath
import re
from collections.abc import Callable, Mapping

from absl import logging

from bert_tf.families.config import BertConfig
from bert_tf.families.family import is_model_variable
from bert_tf.store import bundle, card, huggingface, variable_names
from bert_tf.store.card import card_of
from bert_tf.store.description import ModelFiles, config_files, settings_files
from bert_tf.store.head_config import HUGGINGFACE_CONFIG, HeadConfig
from bert_tf.store.open import BERT_TF, FORMATS, HUGGINGFACE, TF1, Format, has_weights
from bert_tf.store.tensor_files import Weights, renamed, write_safetensors
from bert_tf.system import storage
from bert_tf.system.messages import abbreviated_list
from bert_tf.system.storage import gfile, is_remote, names_in, write_files, write_text_file
from bert_tf.system.text_files import directory_of, exists, is_folder
from bert_tf.text import tokenizer_files
from bert_tf.text.tokenizer import ROLES
from bert_tf.text.wordpiece import FullTokenizer

# That of the original and of tf-models-official, whatever a configuration says.
_THEIR_LAYER_NORM_EPS = 1e-12


def write_weights(path: str, format: Format, weights: Weights, config: BertConfig, head: HeadConfig) -> dict[str, str]:
    """Writes weights to a file or prefix, configuration and head next to it; returns original's name -> name there."""
    texts = config_files(config, head)
    if format is BERT_TF:
        names = {name: name for name in weights}
        write_safetensors(path, weights, {"format": "bert_tf"})
    elif format is HUGGINGFACE:
        weights, lines = huggingface.with_class_variables(weights, config, head)
        for line in lines:
            logging.info("%s: %s", path, line)
        names = huggingface.save(path, weights, config, head)
        values = huggingface.config_values(config, weights, head)
        texts = {HUGGINGFACE_CONFIG: json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n"}
    else:
        names = variable_names.names_there(weights, config)
        bundle.write_bundle(path, renamed(weights, {there: name for name, there in names.items()}, {}))
    for name, text in texts.items():
        write_text_file(posixpath.join(posixpath.dirname(path), name), text)
    return names


def write_beside(directory: str, description: Mapping[str, bytes]) -> None:
    contents = {posixpath.join(directory, name): content for name, content in description.items()}
    for folder in {posixpath.dirname(path) for path in contents}:
        gfile().makedirs(folder)
    if contents:
        write_files(contents)


def description_files(files: ModelFiles, vocabulary: list[str] | None = None) -> dict[str, bytes]:
    """name -> content of the files that say how vectors of texts are made, if that is known, and of the tokenizer's.

    They are in the order of writing: tokenizer_config.json comes before the vocabulary. Without a vocabulary there is
    nothing but the casing, if it is known. vocabulary: lines of vocab.txt instead of files.vocab_file.
    """
    check_vocabulary(files, vocabulary)
    default, casing, kind, of_vectors = files.family.tokenizer_class, files.casing, files.tokenizer_kind(), {}
    if files.sentences:
        texts = settings_files(files.sentences, files.needed_config().hidden_size)
        of_vectors = {name: text.encode() for name, text in texts.items()}
    if not files.vocab_file:
        if not issubclass(default, FullTokenizer) or casing.do_lower_case is None:
            return of_vectors
        contents, settings = {}, {f"{role}_token": getattr(default, f"{role}_token") for role in ROLES}
        settings |= {"do_lower_case": casing.do_lower_case, "strip_accents": casing.strip_accents}
    else:
        is_pieces = issubclass(kind, FullTokenizer)
        tokenizer = kind.from_file(files.vocab_file, casing) if is_pieces else files.make_tokenizer(is_checked=True)
        contents, settings, kind = tokenizer.files(), tokenizer.settings(), type(tokenizer)
        if vocabulary is not None:
            contents[tokenizer_files.VOCAB] = "".join(line + "\n" for line in vocabulary).encode()
    settings["model_max_length"] = files.max_seq_length or files.needed_config().max_length
    is_usual = kind.huggingface_class == default.huggingface_class
    settings["tokenizer_class"] = files.family.tokenizer_name if is_usual else kind.huggingface_class
    text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
    contents[tokenizer_files.TOKENIZER_CONFIG] = f"{text}\n".encode()
    return of_vectors | dict(reversed(contents.items()))


@dataclasses.dataclass(frozen=True)
class Written:
    """`write_model`'s result: the weights' path, their names by the original's, left out ones -> why, all files."""

    path: str
    names: dict[str, str]
    left_out: dict[str, str]
    files: list[str]


def write_model(
    target: str,
    weights: Weights,
    files: ModelFiles,
    *,
    format: str,
    with_optimizer: bool = False,
    vocabulary: list[str] | None = None,
    overwrite: bool = False,
    check: Callable[[str], None] | None = None,
    card_text: str | None = None,
) -> Written:
    """Writes weights and their files in one of the formats, complete or not at all.

    Everything is written into a private folder and then moved, see `storage.replace_together`, or copied to a remote
    directory, in which a kill may leave no weights.

    target: a directory; for TensorFlow checkpoints also a prefix ending in .ckpt or .ckpt-<number>.
    with_optimizer: also write Adam moments and step (tf1 and bert_tf). vocabulary: see `description_files`.
    check: called with the path of the weights while they still have their temporary name; may raise.
    card_text: the card, if `files` don't describe it.
    """
    import tensorflow as tf

    options = {"format": format, "with_optimizer": with_optimizer, "overwrite": overwrite}
    directory, name, old = check_writable(target, weights, files, **options)  # before the work, not after it
    left_out = {}
    description = description_files(files, vocabulary) if files.description is None else files.description
    if not with_optimizer:
        left_out = {name: "optimizer state" for name in weights if not is_model_variable(name)}
        weights = dataclasses.replace(weights, shapes={n: s for n, s in weights.shapes.items() if n not in left_out})
    parent = None
    if not is_remote(directory):
        parent = directory if is_folder(directory) else posixpath.dirname(directory.rstrip("/")) or "."
        os.makedirs(parent, exist_ok=True)
    storage.remove_left_behind(parent)
    try:
        with storage.private_folder(parent) as private:
            temporary = posixpath.join(private, "whole")
            os.mkdir(temporary)
            with storage.batch_fsync(temporary):
                file, kind = posixpath.join(temporary, name), FORMATS[format]
                names = write_weights(file, kind, weights, files.needed_config(), files.head)
                if name.startswith("model.ckpt-"):
                    write_text_file(posixpath.join(temporary, "checkpoint"), f'model_checkpoint_path: "{name}"\n')
                write_beside(temporary, description)
                if not card.is_user_card(directory):
                    write_text_file(posixpath.join(temporary, card.CARD), card_text or card_of(weights, files, format))
            if check:
                check(file)
            written = _move(temporary, directory, old)
    except tf.errors.OpError as error:
        raise OSError(f"{target} could not be written: {error.message}") from error
    left_out |= {name: f"the {format} format can't store it" for name in weights if name not in names}
    return Written(posixpath.join(directory, name), names, left_out, written)


def check_writable(
    target: str, weights: Weights, files: ModelFiles, *, format: str, with_optimizer: bool, overwrite: bool
) -> tuple[str, str, list[str]]:
    """Raises for what `write_model` can't write, before any tensor is read.

    Returns directory and name of the weights, and the files of an old model to remove.
    """
    config = files.needed_config()
    _check_format(format, files)
    kind = FORMATS[format]
    if with_optimizer and kind not in (BERT_TF, TF1):
        raise ValueError(f"--with_optimizer: the {format} format can't store Adam moments and the step; use tf1.")
    if with_optimizer and "global_step" not in weights.shapes:
        raise ValueError(f"--with_optimizer: {weights.path} has no optimizer state (no global_step).")
    if kind is HUGGINGFACE:
        huggingface.names_there(weights, config, files.head)
    directory, name = target, kind.file_name or ""
    if kind is TF1 and re.search(r"\.ckpt(-[^/]*)?$", target) and not is_folder(target):
        directory, name = posixpath.dirname(target) or ".", posixpath.basename(target)
    elif kind is TF1 and with_optimizer:
        # A run of the original resumes from the newest model.ckpt-<step> that the state file names.
        name = f"model.ckpt-{int(weights['global_step'])}"
    return directory, name, _check_target(directory, name, weights.path, overwrite)


def check_vocabulary(files: ModelFiles, vocabulary: list[str] | None = None) -> None:
    """Raises if a vocabulary of word pieces has more lines than the model has rows."""
    if (file := files.vocab_file) and issubclass(files.tokenizer_kind(), FullTokenizer):
        lines, size = vocabulary or tokenizer_files.vocabulary_lines(file), files.needed_config().vocab_size
        if len(lines) > size:
            raise ValueError(f"{file} has {len(lines)} lines, but vocab_size is {size}.")


def _check_format(format: str, files: ModelFiles) -> None:
    """Raises if a format can't hold a model; warns of what programs for it don't read."""
    config, formats = files.needed_config(), files.family.formats
    if format not in formats:
        raise ValueError(f"format={format}: {config.title} has no such format; it has {', '.join(formats)}.")
    variant = "has causal attention (attention=causal)" if config.is_causal else files.head.variant
    if variant and format != "bert_tf":
        raise ValueError(f"format={format}: this model {variant}, which only the format bert_tf can record.")
    if format == "tf1" and config.layer_norm_eps != _THEIR_LAYER_NORM_EPS:
        message = "format=%s: layer_norm_eps is %g; programs for this format compute with %g, and their outputs differ."
        logging.warning(message, format, config.layer_norm_eps, _THEIR_LAYER_NORM_EPS)
    if format == "huggingface" and files.vocab_file and (differs := files.tokenizer_kind().transformers_differs):
        logging.warning("%s: %s", files.vocab_file, differs)


# Weights, configuration, head, vocabulary and casing of a model; left next to another model's they would be mixed up.
_MODEL_FILE = re.compile(
    r"(\w+_)?config\.json|vocab\.(txt|json)|merges\.txt|spiece\.model|tokenizer(_config)?\.json|"
    r"special_tokens_map\.json|added_tokens\.json|checkpoint|"
    r"(bert_)?model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?|"
    r"tf_model\.h5|.*\.ckpt(-\d+)?\.(index|meta|data-\d+-of-\d+)|lora\.safetensors|modules\.json|config_sentence_transformers\.json|sentence_bert_config\.json|[12]_\w+/config\.json"
)


def _check_target(directory: str, name: str, source: str, overwrite: bool) -> list[str]:
    """Raises for a target that would mix or destroy models; returns the files of an old model to remove."""
    if not exists(directory):
        return []
    storage.finish_replacing(directory)
    old = sorted(filter(_MODEL_FILE.fullmatch, files_below(directory)))
    if is_ours := card.read_generated_card(directory) is not None:
        old.append(card.CARD)
    # Of a remote directory that was to be new, and of which the card was copied, but not the weights.
    is_half = is_remote(directory) and is_ours and not has_weights(directory)
    if old and not overwrite and not is_half:
        have = f"already has files of a model ({abbreviated_list(old)})"
        raise FileExistsError(f"{directory} {have}; overwrite=True replaces them.")
    from_file = exists(source) or exists(source + bundle.INDEX_SUFFIX)
    if old and from_file and posixpath.normpath(directory_of(source)) == posixpath.normpath(directory):
        raise ValueError(f"{directory} would replace the source {source}: give another target.")
    run = [file for file in old if file.startswith("model.ckpt-") and not file.startswith(name + ".")]
    if run:
        has = f"has the checkpoints of a training run ({abbreviated_list(run)})"
        raise FileExistsError(f"{directory} {has}: give another target.")
    return old


def files_below(directory: str) -> list[str]:
    """The names of the files in a directory and, with the folder's, in its folders."""
    names: list[str] = []
    for name in names_in(directory):
        path = posixpath.join(directory, name)
        names += [posixpath.join(name, entry) for entry in names_in(path)] if is_folder(path) else [name]
    return names


def _move(temporary: str, directory: str, old: list[str]) -> list[str]:
    names = sorted(files_below(temporary), key=lambda name: (_is_weights(name), name != card.CARD))
    obsolete = sorted({*old}.difference(names), key=_is_weights, reverse=True)
    if is_remote(directory):
        moves = {posixpath.join(temporary, name): posixpath.join(directory, name) for name in names}
        storage.remove_temporary_files([*moves.values()])
        storage.replace_files(moves, [posixpath.join(directory, name) for name in obsolete])
    elif exists(directory):
        storage.replace_together(temporary, directory, names, obsolete)
    else:
        os.rename(temporary, directory)
        storage.sync(posixpath.dirname(directory.rstrip("/")))
    return sorted(names)


def _is_weights(name: str) -> bool:
    """Whether a file is the one without which there are no weights; of a checkpoint, its index."""
    return name.endswith((bundle.INDEX_SUFFIX, ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json"))
