"""The card of a model: the README.md beside its weights says what it is, what it was made of, and how to use it.

The form is that of Hugging Face's hub (https://huggingface.co/docs/hub/model-cards): YAML, which the hub reads, then
Markdown. A card has only facts that are known, and neither date nor host: the same run always leaves the same bytes.

TensorFlow is imported inside the functions.
"""

import dataclasses
import math
import posixpath
import re
from collections.abc import Collection, Mapping

import yaml
from absl import logging

from bert_tf.models.config import BertConfig
from bert_tf.models.head_config import WITHOUT_BERT, HeadConfig
from bert_tf.models.sentence_settings import SentenceSettings
from bert_tf.models.variable_names import REPLACED_TOKEN_HEAD
from bert_tf.text.casing import Casing, directory_of
from bert_tf.weights.mapping import Weights, is_model_variable

CARD = "README.md"
PLACE = "path/to/this/folder"  # stands for the folder of the card in its commands
_MARK = "<!-- bert_tf wrote this file, and replaces it. Remove this line to keep what you change. -->"
_MOST_BYTES = 1 << 20  # that are read of a README or a licence
_MOST_LABELS = 50
_YAML = {"sort_keys": False, "allow_unicode": True, "width": 1_000_000}
_LICENSE_KEYS = ("license", "license_name", "license_link")
_LICENSE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md")
# What is at the beginning of a licence, in lower case -> the hub's name.
_LICENSES = {
    "apache license version 2.0": "apache-2.0",
    "permission is hereby granted, free of charge, to any person obtaining a copy of this software": "mit",
}
# Hugging Face's cache keeps a model of the hub in models--owner--name/snapshots/REVISION.
_HUB_CACHE = re.compile(r"(?:^|/)models--([\w.-]+?)--([\w.-]+)/snapshots/[0-9a-f]{40}(?:/|$)")

_COMMON_NAMES = ("best_model", "pretrained")  # they say nothing without the folder that they are in

# Architecture -> the hub's name of the task, and the task in words.
_TASKS = {
    **dict.fromkeys(
        ("BertForSequenceClassification", *WITHOUT_BERT), ("text-classification", "classification of texts")
    ),
    "BertForTokenClassification": ("token-classification", "tags of words"),
    "BertForMultipleChoice": ("multiple-choice", "multiple choice"),
    **dict.fromkeys(
        ("BertForQuestionAnswering", "ElectraForQuestionAnswering", "AlbertForQuestionAnswering"),
        ("question-answering", "answers to questions in a text"),
    ),
    **dict.fromkeys(("BertForMaskedLM", "BertForPreTraining"), ("fill-mask", "guesses of masked words")),
    "BertForNextSentencePrediction": (None, "whether one text follows another"),
    "ElectraDiscriminator": (None, "which tokens were replaced"),
    "BertModel": ("feature-extraction", "vectors of tokens and texts"),
}


@dataclasses.dataclass(frozen=True)
class Beginning:
    """The weights that a model began from.

    Attributes:
      path: as given; None: random weights. step: of the training run that saved them, if they say it.
      checksum: `Weights.checksum`; None: it was not computed.
      license: the hub's keys about the licence, from beside the weights; empty: not known.
      license_file: the file there that is about the licence, if any.
      base_model: their name on the hub, if known.
    """

    path: str | None
    step: int | None = None
    checksum: str | None = None
    license: Mapping[str, str] = dataclasses.field(default_factory=dict)
    license_file: str | None = None
    base_model: str | None = None


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """What a card says beyond what a model's own files do; what is not known stays out.

    Attributes:
      beginning: the weights that it began from.
      data: what tells the training data from any other.
      settings: of the training. results: on the dev set, with `step`, if known. notes: sentences about these.
      usage: lines of Python, or commands, that use the model in the folder PLACE; None: they follow from its class.
      is_served: whether export_saved_model.py takes it.
    """

    beginning: Beginning | None = None
    data: str | None = None
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    results: Mapping[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    usage: str | None = None
    is_served: bool = True


NO_FACTS = CardFacts()


# --- read ------------------------------------------------------------------------------------------------------------


def beginning_of(path: str, weights: Weights, with_checksum: bool = True) -> Beginning:
    """What is known of weights that a model begins from.

    Args:
      path: as the user gave it. with_checksum: reads all tensors.
    """
    directory = directory_of(weights.path)
    license_keys, file = _find_license(directory)
    front = front_matter(_read_if_there(posixpath.join(directory, CARD)), posixpath.join(directory, CARD))
    cached = _HUB_CACHE.search(directory)
    base = "/".join(cached.groups()) if cached else None
    if base is None and is_ours(directory) and isinstance(front.get("base_model"), str):
        base = front["base_model"]  # the card is that of a model that has no name there, but began from one that has
    step = int(weights["global_step"]) if "global_step" in weights else None
    return Beginning(path, step, weights.checksum if with_checksum else None, license_keys, file, base)


def beginning_from(values: object) -> Beginning | None:
    """A `Beginning` from its fields as a JSON file has them; None if they are no such fields."""
    if not isinstance(values, Mapping) or not isinstance(values.get("path", 0), str | None):
        return None
    names = {field.name for field in dataclasses.fields(Beginning)}
    known = {name: value for name, value in values.items() if name in names}
    if not isinstance(known.get("license", {}), Mapping):
        return None
    return Beginning(**known)


def read_ours(directory: str) -> str | None:
    """The text of a directory's card; None if it has none that this module wrote and no user has taken over."""
    text = _read_if_there(posixpath.join(directory, CARD))
    return text if text and _MARK in text else None


def is_ours(directory: str) -> bool:
    """Whether the directory has a card of ours."""
    return read_ours(directory) is not None


def is_others(directory: str) -> bool:
    """Whether the directory has a README.md that is not ours, and so stays as it is."""
    import tensorflow as tf

    return tf.io.gfile.exists(posixpath.join(directory, CARD)) and not is_ours(directory)


def front_matter(text: str | None, path: str) -> dict:
    """The YAML at the beginning of a card; empty if there is none, or with a warning if it is damaged.

    Args:
      path: of the card, for the warning.
    """
    found = re.match(r"---[ \t]*\n(.*?)^---[ \t]*$", text or "", re.DOTALL | re.MULTILINE)
    if not found:
        return {}
    try:
        values = yaml.safe_load(found[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        logging.warning("%s: its YAML is damaged and not used (%s).", path, " ".join(str(error).split()))
        return {}
    return values if isinstance(values, dict) else {}


def _find_license(directory: str) -> tuple[dict[str, str], str | None]:
    """The hub's keys about the licence of the weights in a directory, and the file that is about it."""
    path = posixpath.join(directory, CARD)
    front = front_matter(_read_if_there(path), path)
    keys = {key: front[key] for key in _LICENSE_KEYS if isinstance(front.get(key), str)}
    if "license" in keys:
        return keys, CARD
    for name in _LICENSE_FILES:
        text = _read_if_there(posixpath.join(directory, name))
        if text is not None:
            words = " ".join(text[:3000].lower().split())
            found = next((known for phrase, known in _LICENSES.items() if phrase in words), None)
            return ({"license": found} if found else {}), name
    return {}, None


def _read_if_there(path: str) -> str | None:
    """The beginning of a text file; None if there is no such file. Bytes that are not UTF-8 become U+FFFD."""
    import tensorflow as tf

    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        return None
    with tf.io.gfile.GFile(path, "rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8-sig", "replace").replace("\r\n", "\n")


# --- write -----------------------------------------------------------------------------------------------------------


def card_text(
    config: BertConfig,
    head: HeadConfig,
    shapes: Mapping[str, tuple[int, ...]],
    facts: CardFacts,
    format: str = "bert_tf",
    *,
    casing: Casing = Casing(),  # noqa: B008
    sentences: SentenceSettings | None = None,
) -> str:
    """The card of a model.

    Args:
      shapes: of its variables. format: of its weights; one of `open_weights.FORMATS`.
      casing, sentences: see `directory.ModelFiles`.
    """
    from bert_tf.models.huggingface import architecture_of

    architecture = head.architecture or architecture_of(shapes, head)
    if REPLACED_TOKEN_HEAD in shapes:
        architecture = "ElectraDiscriminator"
    tag, task = _task_of(architecture, head, sentences)
    without_bert = architecture in WITHOUT_BERT
    title = architecture.removesuffix("Classifier") if without_bert else config.title
    front = {
        **(facts.beginning.license if facts.beginning else {}),
        "base_model": facts.beginning and facts.beginning.base_model,
        "library_name": _library(format, sentences),
        "pipeline_tag": tag,
        "tags": ["bert_tf", title.lower()] + ["sentence-transformers"] * (sentences is not None),
    }
    trained = facts.settings.get("max_seq_length")
    sections = {
        "Sizes": _block(_sizes(config, head, shapes, casing, without_bert, trained)),
        "Labels": _block(_labels(head.labels)),
        "What it is made of": _block(_origin(facts)),
        "Training": "\n\n".join(filter(None, [*facts.notes, _block(_public(facts.settings))])),
        "Results on the dev set": _results(facts),
        "How to use it": _usage(facts, architecture, tag, without_bert),
    }
    body = "".join(_section(title, text) for title, text in sections.items() if text)
    return _with_front(front, f"{_MARK}\n# {title}: {task}\n{body}")


def converted(text: str, format: str, sentences: SentenceSettings | None, lines: Collection[str]) -> str:
    """A card of ours for the same model in another format.

    Args:
      text: the card. lines: what was changed on the way.
    """
    front = {**front_matter(text, CARD), "library_name": _library(format, sentences)}
    body = re.sub(r"\A---[ \t]*\n.*?^---[ \t]*\n+", "", text, count=1, flags=re.DOTALL | re.MULTILINE)
    if lines:
        body += _section("Changed by convert_checkpoint.py", "\n".join(f"- {line}" for line in lines))
    return _with_front(front, body)


def _section(title: str, text: str) -> str:
    return f"\n{'#' * 2} {title}\n{text}\n"


def _with_front(front: Mapping[str, object], body: str) -> str:
    known = {key: value for key, value in front.items() if value is not None}
    return f"---\n{yaml.safe_dump(known, **_YAML)}---\n{body}"


def _library(format: str, sentences: SentenceSettings | None) -> str:
    """What opens the files: the hub's library_name."""
    if format != "huggingface":
        return "bert_tf"
    return "sentence-transformers" if sentences else "transformers"


def _task_of(architecture: str, head: HeadConfig, sentences: SentenceSettings | None) -> tuple[str | None, str]:
    """The hub's name of a model's task, if it has one, and the task in words."""
    if sentences is not None:
        return "sentence-similarity", "vectors of texts"
    tag, task = _TASKS.get(architecture, (None, architecture))
    if head.problem_type == "regression":
        task = "a number for a text"
    if head.problem_type == "multi_label_classification":
        task += ", any number of labels for each"
    return tag, task


def _sizes(
    config: BertConfig, head: HeadConfig, shapes: Mapping, casing: Casing, without_bert: bool, trained_length: object
) -> dict[str, object]:
    if without_bert:
        rows = {"width of the embeddings": config.hidden_size, "width of the layer": config.intermediate_size}
    else:
        narrow = config.embedding_size != config.hidden_size
        shorter = isinstance(trained_length, int) and trained_length < config.max_length
        rows = {
            "layers": len(config.block_order),
            "width": config.hidden_size,
            "attention heads": config.num_attention_heads,
            "width of the feed-forward layers": config.intermediate_size,
            "width of the embeddings": config.embedding_size if narrow else None,
            "longest input": f"{config.max_length} tokens" + (f"; in training {trained_length}" if shorter else ""),
            "attention": "each token sees those before it" if config.is_causal else None,
        }
    return rows | {
        "vocabulary": f"{config.vocab_size:,} tokens",
        "case": {True: "uncased", False: "cased"}.get(casing.do_lower_case),
        "parameters": f"{sum(math.prod(shapes[name]) for name in filter(is_model_variable, shapes)):,}",
        "on top": head.variant and f"it {head.variant}",
    }


def _labels(labels: tuple[str, ...] | None) -> dict:
    shown = dict(enumerate((labels or ())[:_MOST_LABELS]))
    return shown | ({"and more": len(labels) - _MOST_LABELS} if len(labels or ()) > _MOST_LABELS else {})


def _origin(facts: CardFacts) -> dict[str, object]:
    start = facts.beginning
    rows = {"weights at the start": "random" if start else "not recorded", "licence": "not known"}
    if start and start.path:
        name, file = start.license.get("license_name") or start.license.get("license"), start.license_file
        unread = f"not known ({file} beside them is not recognised)" if file else "not known"
        rows = {
            "weights at the start": _public_path(start.path),
            "step": start.step,
            "checksum": start.checksum,
            "licence": f"{name}, as {file} beside them says" if name else unread,
        }
    return {**rows, "training data": facts.data or "not recorded"}


def shown_results(results: Mapping[str, float]) -> dict[str, float]:
    """The metrics to show of an evaluation's results: without its step, and without `loss` beside `eval_loss`.

    The first is the mean over batches, which the original writes, too; the second is the mean over examples.
    """
    hidden = {"step", "global_step"} | ({"loss"} if "eval_loss" in results else set())
    return {name: value for name, value in results.items() if name not in hidden}


def _results(facts: CardFacts) -> str:
    step = facts.results.get("step", facts.results.get("global_step"))
    after = f"After step {step:g}:\n" if step is not None else ""
    rows = {name: float(f"{value:.6g}") for name, value in shown_results(facts.results).items()}
    return after + _block(rows) if rows else ""


def _usage(facts: CardFacts, architecture: str, tag: str | None, without_bert: bool) -> str:
    usage = facts.usage
    if usage is None and without_bert:
        usage = f"python run_classifier.py --do_predict --init_checkpoint={PLACE} --output_dir=..."
    if usage is None:
        usage = f'from bert_tf import {architecture}\n\nmodel = {architecture}.from_pretrained("{PLACE}")'
    language = "shell" if usage.startswith("python ") else "python"
    parts = [f"```{language}\n{usage}\n```"]
    if facts.is_served and tag and not without_bert:
        export = f"python export_saved_model.py --model_dir={PLACE} --export_dir=serving/model"
        parts.append(f"A SavedModel for TensorFlow Serving, strings in and answers out:\n```shell\n{export}\n```")
    return "\n\n".join(parts)


def _block(values: Mapping) -> str:
    """YAML of what is known, a line for each value, whatever text is in it; "" if there is nothing."""
    known = {
        name: " ".join(value.split()) if isinstance(value, str) else value
        for name, value in values.items()
        if value is not None
    }
    return f"```yaml\n{yaml.safe_dump(known, **_YAML)}```" if known else ""


def _public(value: object) -> object:
    """A setting, or all of them, without the folders where their owner keeps files."""
    if isinstance(value, Mapping):
        return {name: _public(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return ", ".join(str(_public(inner)) for inner in value)
    return ",".join(map(_public_path, value.split(","))) if isinstance(value, str) else value  # a flag may list files


def _public_path(path: str) -> str:
    """A path as a card shows it: in the hub's cache the model's name there; of any other absolute one only its end,
    since the rest says where its owner keeps files."""
    if cached := _HUB_CACHE.search(path):
        return "/".join(cached.groups())
    if not path.startswith(("/", "~")) and "://" not in path:
        return path
    *_, folder, name = ("", *path.rstrip("/").split("/"))
    is_common = "." in name or name in _COMMON_NAMES
    return f"{folder}/{name}" if is_common and folder else name
