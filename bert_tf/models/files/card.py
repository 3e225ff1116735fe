"""The card of a model: the README.md beside its weights says what it is, what it was made of, and how to use it.

The form is that of Hugging Face's hub (https://huggingface.co/docs/hub/model-cards): YAML, which the hub reads, then
Markdown. A card has only facts that are known, and neither date nor host: the same run always leaves the same bytes.
"""

import dataclasses
import math
import posixpath
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import yaml
from absl import logging

from bert_tf.models.configuration.config import BertConfig
from bert_tf.models.configuration.head_config import HeadConfig
from bert_tf.models.configuration.variable_names import REPLACED_TOKEN_HEAD
from bert_tf.system import storage
from bert_tf.system.text_files import exists, is_folder, open_binary
from bert_tf.text.tokenizer_files import Casing, directory_of
from bert_tf.weights.tensor_files import Weights, is_model_variable

if TYPE_CHECKING:
    from bert_tf.models.configuration.sentence_settings import SentenceSettings

CARD = "README.md"
PLACE = "path/to/this/folder"  # stands for the folder of the card in its commands
_MARK = "<!-- bert_tf wrote this file, and replaces it. Remove this line to keep what you change. -->"
_FRONT = re.compile(r"\s*---\n(.*?)\n---\n", re.DOTALL)
_THEIR_USE = re.compile(r"\n#{2} How \S+ opens it\n```python\n.*?```\n", re.DOTALL)
_MOST_BYTES = 1 << 20  # that are read of a README or a licence
_LICENSE_KEYS = ("license", "license_name", "license_link")
_LICENSE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md")
# What is at the beginning of a licence, in lower case -> the hub's name.
_LICENSES = {
    "apache license version 2.0": "apache-2.0",
    "permission is hereby granted, free of charge, to any person obtaining a copy of this software": "mit",
}

_COMMON_NAMES = ("best_model", "pretrained")  # they say nothing without the folder that they are in
# Architecture -> the hub's name of the task, and the task in words.
_TASKS = {
    "BertForSequenceClassification": ("text-classification", "classification of texts"),
    "BertForTokenClassification": ("token-classification", "tags of words"),
    "BertForMultipleChoice": ("multiple-choice", "multiple choice"),
    "BertForQuestionAnswering": ("question-answering", "answers to questions in a text"),
    "BertForMaskedLM": ("fill-mask", "guesses of masked words"),
    "BertForPreTraining": ("fill-mask", "guesses of masked words"),
    "BertForNextSentencePrediction": (None, "whether one text follows another"),
    "ElectraDiscriminator": (None, "which tokens were replaced"),
    "BertModel": ("feature-extraction", "vectors of tokens and texts"),
}

_WITHOUT_PIPELINE = ("question-answering", "multiple-choice")  # in transformers


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """What a card says beyond what a model's own files do; what is not known stays out.

    Attributes:
      beginning: the weights that it began from, as `beginning_of` has them.
      data: what tells the training data from any other.
      settings: of the training, as `public` has them. results: on the dev set, with `step`, if known.
      notes: sentences about these.
      usage: lines of Python, or commands, that use the model in the folder PLACE; None: they follow from its class.
      is_served: whether export_saved_model.py takes it.
    """

    beginning: Mapping | None = None
    data: str | None = None
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    results: Mapping[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    usage: str | None = None
    is_served: bool = True


NO_FACTS = CardFacts()


def beginning_of(path: str | None, weights: Weights | None = None, with_checksum: bool = True) -> dict[str, object]:
    """What is known of weights that a model begins from, as run.json keeps it.

    Args:
      path: as the user gave it; None: they are random. with_checksum: reads all tensors.

    Returns:
      path; step: of the training run that saved them; checksum: `Weights.checksum`; license: the hub's keys about the
      licence; license_file: the file that is about it; base_model: their name on the hub. What is not known is None.
    """
    if path is None:
        return {"path": None}
    directory = directory_of(weights.path)
    card = _read_if_there(directory, CARD) or ""
    front = _front_of(card, directory)
    license = {key: front[key] for key in _LICENSE_KEYS if isinstance(front.get(key), str)}
    file = CARD if "license" in license else None
    if file is None:
        texts = {name: _read_if_there(directory, name) for name in _LICENSE_FILES}
        file = next((name for name in _LICENSE_FILES if texts[name] is not None), None)
        words = " ".join((texts.get(file) or "")[:3000].lower().split())
        known = [name for phrase, name in _LICENSES.items() if phrase in words]
        license = {"license": known[0]} if known else {}
    hub_name = storage.name_of(directory)
    # The card of a model that has no name there says which it began from.
    base = hub_name.partition("@")[0] if hub_name != directory else front.get("base_model") if _MARK in card else None
    return {
        "path": storage.name_of(path),
        "step": int(weights["global_step"]) if "global_step" in weights else None,
        "checksum": weights.checksum if with_checksum else None,
        "license": license,
        "license_file": file,
        "base_model": base if isinstance(base, str) else None,
    }


def read_ours(directory: str) -> str | None:
    """A directory's card; None if it has none, or one that is a user's."""
    text = _read_if_there(directory, CARD)
    return text if text and _MARK in text else None


def is_others(directory: str) -> bool:
    """Whether the directory has a README.md that is not ours, and so stays as it is."""
    return exists(posixpath.join(directory, CARD)) and read_ours(directory) is None


def _front_of(text: str, directory: str) -> dict:
    """What the YAML of a card says; of a damaged one nothing, with a warning."""
    match = _FRONT.match(text)
    try:
        values = yaml.safe_load(match[1]) if match else {}
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        logging.warning("%s: its YAML is damaged and not used (%s).", posixpath.join(directory, CARD), problem)
        return {}
    return values if isinstance(values, dict) else {}


def _read_if_there(directory: str, name: str) -> str | None:
    """The beginning of a text file; None if there is no such file. Bytes that are not UTF-8 become U+FFFD."""
    path = posixpath.join(directory, name)
    if not exists(path) or is_folder(path):
        return None
    with open_binary(path) as file:
        return file.read(_MOST_BYTES).decode("utf-8-sig", "replace").replace("\r\n", "\n")


def card_text(
    config: BertConfig,
    head: HeadConfig,
    shapes: Mapping[str, tuple[int, ...]],
    facts: CardFacts,
    format: str = "bert_tf",
    *,
    casing: Casing = Casing(),  # noqa: B008
    sentences: "SentenceSettings | None" = None,
) -> str:
    """The card of a model.

    Args:
      shapes: of its variables. format: of its weights; one of `open_weights.FORMATS`.
      casing, sentences: see `directory.ModelFiles`.
    """
    if not (architecture := "ElectraDiscriminator" if REPLACED_TOKEN_HEAD in shapes else head.architecture):
        from bert_tf.models.files.huggingface import architecture_of

        architecture = architecture_of(shapes, head)
    tag, task = _TASKS.get(architecture, (None, architecture))
    if sentences is not None:
        tag, task = "sentence-similarity", "vectors of texts"
    elif head.problem_type == "regression":
        task = "a number for a text"
    elif head.problem_type == "multi_label_classification":
        task += ", any number of labels for each"
    start = facts.beginning or {}
    front = {
        **(start.get("license") or {}),
        "base_model": start.get("base_model"),
        "library_name": _library(format, sentences),
        "pipeline_tag": tag,
        "tags": ["bert_tf", config.title.lower()] + ["sentence-transformers"] * (sentences is not None),
    }
    step = facts.results.get("step", facts.results.get("global_step"))
    results = _block({name: float(f"{value:.6g}") for name, value in shown_results(facts.results).items()})
    sections = {
        "Sizes": _block(_sizes(config, head, shapes, casing, facts.settings.get("max_seq_length"))),
        "Labels": _block(dict(enumerate(head.labels or ()))),
        "What it is made of": _block(_origin(facts)),
        "Training": "\n\n".join(filter(None, [*facts.notes, _block(facts.settings)])),
        "Results on the dev set": (f"After step {step:g}:\n" if results and step is not None else "") + results,
        "How to use it": _usage(facts, architecture, tag),
    }
    body = "".join(_section(title, text) for title, text in sections.items() if text)
    body += _their_use(format, front["library_name"], tag)
    return f"---\n{_yaml(front)}---\n{_MARK}\n# {config.title}: {task}\n{body}"


def converted(text: str, format: str, sentences: "SentenceSettings | None", lines: Collection[str]) -> str:
    """A card of ours for the same model in another format.

    Args:
      text: the card. lines: what was changed on the way.
    """
    library = _library(format, sentences)
    text = re.sub("^library_name: .*$", f"library_name: {library}", _THEIR_USE.sub("", text), count=1, flags=re.M)
    text += _their_use(format, library, _front_of(text, "").get("pipeline_tag"))
    changes = "\n".join(f"- {line}" for line in lines)
    return text + _section("Changed by convert_checkpoint.py", changes) * bool(lines)


def _their_use(format: str, library: str, tag: str | None) -> str:
    """The section that says how others open the files, for the libraries that do."""
    if format != "huggingface" or not tag:
        return ""
    opened = f'pipeline("{tag}", "{PLACE}")'
    if library == "sentence-transformers":
        opened = f'SentenceTransformer("{PLACE}")'
    elif tag in _WITHOUT_PIPELINE:
        opened = f'AutoModelFor{tag.title().replace("-", "")}.from_pretrained("{PLACE}")'
    imported = f"from {library.replace('-', '_')} import {re.split('[.(]', opened)[0]}"
    return _section(f"How {library} opens it", f"```python\n{imported}\n\n{opened}\n```")


def _section(title: str, text: str) -> str:
    return f"\n{'#' * 2} {title}\n{text}\n"


def _block(values: Mapping) -> str:
    """YAML of what is known, a line for each value, whatever text is in it; "" if there is nothing."""
    lines = {name: " ".join(value.split()) if isinstance(value, str) else value for name, value in values.items()}
    text = _yaml(lines)
    return f"```yaml\n{text}```" if text else ""


def _yaml(values: Mapping) -> str:
    known = {name: value for name, value in values.items() if value is not None}
    return yaml.safe_dump(known, sort_keys=False, allow_unicode=True, width=1_000_000) if known else ""


def _library(format: str, sentences: "SentenceSettings | None") -> str:
    """What opens the files: the hub's library_name."""
    if format != "huggingface":
        return "bert_tf"
    return "sentence-transformers" if sentences else "transformers"


def _sizes(config: BertConfig, head: HeadConfig, shapes: Mapping, casing: Casing, trained: object) -> dict[str, object]:
    """Rows about sizes. trained: the longest input in training, if known."""
    limit = f"; in training {trained}" if isinstance(trained, int) and trained < config.max_length else ""
    return {
        "layers": len(config.block_order),
        "width": config.hidden_size,
        "attention heads": config.num_attention_heads,
        "width of the feed-forward layers": config.intermediate_size,
        "width of the embeddings": config.embedding_size if config.embedding_size != config.hidden_size else None,
        "longest input": f"{config.max_length} tokens{limit}",
        "attention": "each token sees those before it" if config.is_causal else None,
        "vocabulary": f"{config.vocab_size:,} tokens",
        "case": {True: "uncased", False: "cased"}.get(casing.do_lower_case),
        "parameters": f"{sum(math.prod(shapes[name]) for name in filter(is_model_variable, shapes)):,}",
        "head": head.variant and f"it {head.variant}",
    }


def _origin(facts: CardFacts) -> dict[str, object]:
    """Rows about the weights that the model began from, and its data."""
    start = facts.beginning or {}
    license, file = start.get("license") or {}, start.get("license_file")
    name = license.get("license_name") or license.get("license")
    unnamed = "not recorded" if facts.beginning is None else "random"
    unread = f"not known ({file} beside them is not recognised)" if file else "not known"
    return {
        "weights at the start": _end_of(start.get("path") or "") or unnamed,
        "step": start.get("step"),
        "checksum": start.get("checksum"),
        "licence": f"{name}, as {file} beside them says" if name else unread,
        "training data": facts.data or "not recorded",
    }


def shown_results(results: Mapping[str, float]) -> dict[str, float]:
    """The metrics to show of an evaluation's results: without its step, and without `loss` beside `eval_loss`.

    The first is the mean over batches, which the original writes, too; the second is the mean over examples.
    """
    hidden = {"step", "global_step"} | ({"loss"} if "eval_loss" in results else set())
    return {name: value for name, value in results.items() if name not in hidden}


def _usage(facts: CardFacts, architecture: str, tag: str | None) -> str:
    usage = facts.usage or f'from bert_tf import {architecture}\n\nmodel = {architecture}.from_pretrained("{PLACE}")'
    text = f"```python\n{usage}\n```"
    if facts.is_served and tag:
        export = f"python export_saved_model.py --model_dir={PLACE} --export_dir=serving/model"
        text += f"\n\nA SavedModel for TensorFlow Serving, strings in and answers out:\n```shell\n{export}\n```"
    return text


def public(value: object) -> object:
    """A setting, or all of them, without the folders where their owner keeps files: of a path in the hub's cache the
    model's name and commit, of any other absolute one only the end. A flag may list files."""
    if isinstance(value, Mapping):
        return {name: public(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return ", ".join(str(public(inner)) for inner in value)
    if not isinstance(value, str):
        return value
    return ",".join(_end_of(storage.name_of(path)) for path in value.split(","))


def _end_of(path: str) -> str:
    """The last names of an absolute path; others as they are."""
    if not path.startswith(("/", "~")) and "://" not in path:
        return path
    *_, folder, name = ("", *path.rstrip("/").split("/"))
    return f"{folder}/{name}" if folder and ("." in name or name in _COMMON_NAMES) else name
