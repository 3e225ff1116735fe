"""Tiny models of every family, each with a tokenizer of its kind, and records for them."""

import dataclasses
import json
import pathlib

import keras
import numpy as np
import pytest
import tokenizers

from bert_tf import BertConfig, BertModel
from bert_tf.families import family_named
from bert_tf.tasks.classification.settings import ClassificationSettings, read_sets
from bert_tf.tasks.rows import Task
from bert_tf.training.settings import FineTuningSettings
from helpers.basics import GOLDEN
from helpers.outputs import enlarge
from helpers.record_files import example_of, write_records

TINY_CONFIG = BertConfig(100, 32, 2, 2, 64, max_position_embeddings=32, type_vocab_size=2).to_dict()
# For runs of whole scripts, which spend most of their time tracing: a second layer would not test anything more.
ONE_LAYER = {**TINY_CONFIG, "num_hidden_layers": 1}


def write_encoder(folder: pathlib.Path, pieces: list[str], config=ONE_LAYER, do_lower_case: bool | None = True) -> None:
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces))
    keras.utils.set_random_seed(0)
    model = BertModel(BertConfig.from_dict(config))
    model.save_pretrained(str(folder / "encoder"), vocab_file=str(folder / "vocab.txt"), do_lower_case=do_lower_case)


def write_pretraining_records(path, count, max_seq_length=16, max_predictions_per_seq=3, seed=0, mask_of_last=1):
    """Random pre-training examples in the original's format; mask_of_last: input_mask in the last record."""
    generator, payloads = np.random.default_rng(seed), []
    for number in range(count):
        ids = generator.integers(5, TINY_CONFIG["vocab_size"], max_seq_length)
        positions = np.sort(generator.choice(np.arange(1, max_seq_length), max_predictions_per_seq, replace=False))
        lists = {
            "input_ids": ids,
            "input_mask": np.full(max_seq_length, mask_of_last if number == count - 1 else 1),
            "segment_ids": (np.arange(max_seq_length) > max_seq_length // 2).astype(int),
            "masked_lm_positions": positions,
            "masked_lm_ids": ids[positions],
            "next_sentence_labels": generator.integers(0, 2, 1),
            "masked_lm_weights": np.ones(max_predictions_per_seq),
        }
        payloads.append(example_of({name: value.tolist() for name, value in lists.items()}))
    write_records(path, payloads)


# family -> where its vocabulary is, and the largest id + 1
_VOCABULARIES = {
    "bert": (GOLDEN / "vocab.txt", 30522),
    "distilbert": (GOLDEN / "vocab.txt", 30522),
    "electra": (GOLDEN / "vocab.txt", 30522),
    "roberta": (GOLDEN / "tokenization" / "roberta" / "vocab.json", 601),
    "albert": (GOLDEN / "tokenization" / "albert" / "tiny.model", 560),
    "xlm-roberta": (GOLDEN / "tokenization" / "xlm-roberta" / "sentencepiece.bpe.model", 502),
}
NAMES = list(_VOCABULARIES)


def tiny_config(name: str, vocab_size: int = 100, max_length: int = 18, dropout: float | None = None, **others):
    """A configuration of two layers, of families that can have it with narrower embeddings."""
    kind = family_named(name).config_class
    if "embedding_size" in kind.keys():  # noqa: SIM118
        others = {"embedding_size": 24, **others}
    if dropout is not None:
        others |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return kind(
        vocab_size=vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=max_length + 2 * kind.padding_has_a_position, **others,
    )  # fmt: skip


def save_model(
    folder: pathlib.Path, name: str, model_class, *, seed=7, format="bert_tf", max_length=64, config=None, **arguments
) -> str:
    """Saves a model of a family with random weights, large enough for its outputs to differ; returns its directory.

    config: keys of the configuration. arguments: of the class.
    """
    vocab_file, vocab_size = _VOCABULARIES[name]
    if name in ("albert", "xlm-roberta") and format == "huggingface":
        # As on the hub: without a tokenizer.json, transformers needs a protobuf that is newer than TensorFlow's.
        save = save_albert_tokenizer if name == "albert" else save_xlm_roberta_tokenizer
        save(vocab_file, folder.parent / "tokenizer")
        vocab_file = folder.parent / "tokenizer" / "tokenizer.json"
    keras.utils.set_random_seed(seed)
    model = enlarge(model_class(tiny_config(name, vocab_size, max_length, **(config or {})), **arguments), seed)
    casing = {"do_lower_case": True} if family_named(name).tokenizer_class.takes_strip_accents else {}
    model.save_pretrained(str(folder), vocab_file=str(vocab_file), format=format, **casing)
    return str(folder)


def save_albert_tokenizer(model_file, directory):
    """Writes a directory with tokenizer.json; returns the tokenizer of transformers."""
    return _save_tokenizer("AlbertTokenizer", *pieces_of(model_file.read_bytes()), directory)


def save_xlm_roberta_tokenizer(model_file, directory):
    pieces, characters = pieces_of(model_file.read_bytes())
    first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    vocab, mask = [*first, *pieces[3:], ("<mask>", 0.0)], tokenizers.AddedToken("<mask>", lstrip=True, special=True)
    return _save_tokenizer("XLMRobertaTokenizer", vocab, characters or None, directory, mask_token=mask)


def pieces_of(model: bytes) -> tuple[list, bytes]:
    pytest.importorskip("transformers")
    from transformers.utils import sentencepiece_model_pb2_new

    proto = sentencepiece_model_pb2_new.ModelProto.FromString(model)
    return [(piece.piece, piece.score) for piece in proto.pieces], proto.normalizer_spec.precompiled_charsmap


def _save_tokenizer(name, vocab, characters, directory, **tokens):
    import transformers

    tokenizer = getattr(transformers, name)(vocab=vocab, _spm_precompiled_charsmap=characters, **tokens)
    tokenizer.save_pretrained(directory)
    return tokenizer


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", *(f"w{number}" for number in range(93))]


def texts_of(count, seed, words=93, longest=9):
    """Yields words, whether "good" is among them (or "bad"), and where."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        text = [f"w{word}" for word in generator.integers(0, words, generator.integers(2, longest))]
        position = int(generator.integers(len(text) + 1))
        text.insert(position, ("good", "bad")[number % 2])
        yield text, number % 2 == 0, position


def custom_task(settings: ClassificationSettings) -> Task:
    """The task of --task_name=custom, with the labels of its training file."""
    run = FineTuningSettings(output_dir="", do_train=True)
    return read_sets(dataclasses.replace(settings, task_name="custom"), run)[0]


def write_classification(path, texts):
    path.write_text("text,verdict\n" + "".join(f"{' '.join(words)},{('down', 'up')[up]}\n" for words, up, _ in texts))


def write_questions(path, texts, version_2=True, broken=()):
    """Which word is good or bad? One in three contexts has none (version 2); `broken` ones have a wrong place."""
    paragraphs = []
    for number, (words, _, position) in enumerate(texts):
        is_impossible = version_2 and number % 3 == 0
        start = len(" ".join([*words[:position], ""])) + 300 * (number in broken)
        answers = [] if is_impossible else [{"text": words[position], "answer_start": start}]
        words = words[:position] + words[position + is_impossible :]
        question = {"id": f"q{number}", "question": "w1 w2", "answers": answers, "is_impossible": is_impossible}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    path.write_text(json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}))


def write_tags(path, texts):
    sentences = ("".join(f"{word}\t{'B-X' if word in PIECES[5:7] else 'O'}\n" for word in words) for words, *_ in texts)
    path.write_text("\n".join(sentences))


def write_choices(path, texts):
    lines = ["context,question,choice0,choice1,label"]
    lines += [f"w1 w2,w3,{' '.join(words[:position])} w1,{' '.join(words)},{int(up)}" for words, up, position in texts]
    path.write_text("\n".join(lines) + "\n")


def write_pairs(path, texts):
    lines = [f"{' '.join(words)},{' '.join(reversed(words))} w{number}" for number, (words, *_) in enumerate(texts)]
    path.write_text("\n".join(["anchor,positive", *lines]) + "\n")


# script -> (function that writes a file, its suffix, the script's own flags)
WORLDS = {
    "run_classifier": (write_classification, "csv", {"task_name": "custom", "text_a": "text", "label": "verdict"}),
    "run_squad": (
        write_questions, "json",
        {"version_2_with_negative": True, "doc_stride": 8, "max_query_length": 4},
    ),
    "run_ner": (write_tags, "conll", {}),
    "run_similarity": (write_pairs, "csv", {"negatives_batch_size": 4}),
    "run_swag": (write_choices, "csv", {"context": "context", "choices": "choice", "question": "question"}),
}  # fmt: skip
# Token windows of the original's golden SQuAD outputs: max_seq_length, doc_stride, max_query_length.
SQUAD_SIZES = {"S64": (64, 32, 16), "S384": (384, 128, 64)}
