"""The card of a model: the README.md next to its weights says what it is, what it was made of, and how to use it.

The form is that of Hugging Face's hub (https://huggingface.co/docs/hub/model-cards): YAML, which the hub reads, then
Markdown. A card has only facts that are known, and neither date nor host: the same run always leaves the same bytes.
"""

import math
import pathlib
import posixpath
import re
import string
from collections.abc import Collection, Mapping

import yaml
from absl import logging

from bert_tf.families.family import REPLACED_TOKEN_HEAD, is_model_variable
from bert_tf.store.description import ModelFiles
from bert_tf.store.huggingface import architecture_of
from bert_tf.store.tensor_files import Weights
from bert_tf.system import hub
from bert_tf.system.text_files import exists, is_folder, open_binary
from bert_tf.text.tokenizer_files import directory_of, first_existing

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
    "permission is hereby granted, free of charge, to any person obtaining a copy of this software": "mit",
    "apache license version 2.0": "apache-2.0",
}

_COMMON_NAMES = ("best_model", "pretrained")  # they say nothing without the folder that they are in
# What makes vectors of texts, a problem type, or else the architecture -> the hub's name of the task, and it in words.
_TASKS = {
    "sentences": ("sentence-similarity", "vectors of texts"),
    "regression": ("text-classification", "a number for a text"),
    "multi_label_classification": ("text-classification", "classification of texts, any number of labels for each"),
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
# How others open a model for a task, if not by a pipeline of transformers.
_OPENED = {
    "sentence-similarity": f'SentenceTransformer("{PLACE}")',
    "question-answering": f'AutoModelForQuestionAnswering.from_pretrained("{PLACE}")',
    "multiple-choice": f'AutoModelForMultipleChoice.from_pretrained("{PLACE}")',
}
_TEMPLATE = pathlib.Path(__file__).with_name("card_template.md")


def beginning_of(path: str | None, weights: Weights | None = None, with_checksum: bool = True) -> dict[str, object]:
    """What is known of weights that a model begins from, as run.json keeps it; what is not known is None.

    path: as the user gave it; None: they are random. with_checksum: reads all tensors.

    `step` is that of the training run that saved them, `license` has the hub's keys about the licence, `license_file`
    is the file about it, `base_model` their name on the hub.
    """
    if path is None or weights is None:
        return {"path": None}
    directory = directory_of(weights.path)
    card = _beginning(directory, CARD)
    front = _front_of(card, directory)
    license = {key: front[key] for key in _LICENSE_KEYS if isinstance(front.get(key), str)}
    file = CARD if "license" in license else posixpath.basename(first_existing(directory, _LICENSE_FILES) or "") or None
    if file != CARD:
        words = " ".join(_beginning(directory, file)[:3000].lower().split()) if file else ""
        license = next(({"license": name} for phrase, name in _LICENSES.items() if phrase in words), {})
    hub_name = hub.name_of(directory)
    # The card of a model that has no name there says which it began from.
    base = hub_name.partition("@")[0] if hub_name != directory else front.get("base_model") if _MARK in card else None
    return {
        "path": hub.name_of(path),
        "step": int(weights["global_step"]) if "global_step" in weights else None,
        "checksum": weights.checksum if with_checksum else None,
        "license": license,
        "license_file": file,
        "base_model": base if isinstance(base, str) else None,
    }


def read_generated_card(directory: str) -> str | None:
    """A directory's card, if it has one that is not a user's."""
    text = _beginning(directory, CARD)
    return text if _MARK in text else None


def is_user_card(directory: str) -> bool:
    """Whether the directory has a README.md that is not ours, and so stays as it is."""
    return exists(posixpath.join(directory, CARD)) and read_generated_card(directory) is None


def _front_of(text: str, directory: str) -> dict:
    """What the YAML of a card says; of a damaged one nothing, with a warning."""
    match = _FRONT.match(text)
    try:
        values = yaml.safe_load(match[1]) if match else {}
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        values, problem = {}, " ".join(str(error).split())
        logging.warning("%s: its YAML is damaged and not used (%s).", posixpath.join(directory, CARD), problem)
    return values if isinstance(values, dict) else {}


def _beginning(directory: str, name: str) -> str:
    path = posixpath.join(directory, name)
    if not exists(path) or is_folder(path):
        return ""
    with open_binary(path) as file:
        return file.read(_MOST_BYTES).decode("utf-8-sig", "replace").replace("\r\n", "\n")


def card_of(weights: Weights, files: ModelFiles, format: str = "bert_tf") -> str:
    """The card of a model with weights of these variables, which are not read, in one of `open.FORMATS`."""
    shapes, head, facts, config = weights.shapes, files.head, files.card, files.needed_config()
    if not (architecture := "ElectraDiscriminator" if REPLACED_TOKEN_HEAD in shapes else head.architecture):
        architecture = architecture_of(shapes, head)
    kind = "sentences" if files.sentences else head.problem_type
    tag, task = _TASKS.get(kind or "") or _TASKS.get(architecture, (None, architecture))
    use, start = _use_of_others(format, tag), facts.beginning or {}
    license = start.get("license") or {}
    front = {
        **license,
        "base_model": start.get("base_model"),
        "library_name": use["library"],
        "pipeline_tag": tag,
        "tags": ["bert_tf", config.title.lower()] + ["sentence-transformers"] * bool(files.sentences),
    }
    origin = {
        "weights at the start": _end_of(start.get("path") or ("random" if start else "not recorded")),
        "step": start.get("step"),
        "checksum": start.get("checksum"),
        "licence": license.get("license_name") or license.get("license") or "not known",
        "licence file beside them": start.get("license_file"),
        "training data": facts.data or "not recorded",
    }
    step = facts.results.get("step", facts.results.get("global_step"))
    results = {name: float(f"{value:.6g}") for name, value in shown_results(facts.results).items()}
    model = f'from bert_tf import {architecture}\n\nmodel = {architecture}.from_pretrained("{PLACE}")'
    parts = {
        "front": _yaml(front),
        "mark": _MARK,
        "title": config.title,
        "task": task,
        "sizes": _block(_sizes(files, shapes)),
        "labels": _block(dict(enumerate(head.labels or ()))),
        "origin": _block(origin),
        "training": "\n\n".join(text for text in (*facts.notes, _block(facts.settings)) if text),
        "results": results and _block({"after step": step and int(step), **results}),
        "usage": facts.usage or model,
        "is_served": facts.is_served and tag,
        "place": PLACE,
    }
    return _filled({**parts, **use})


def converted(text: str, format: str, lines: Collection[str]) -> str:
    """The text of a card of ours for the same model in another format. lines: what was changed on the way."""
    use = _use_of_others(format, _front_of(text, "").get("pipeline_tag"))
    name = f"library_name: {use['library']}"
    text = re.sub("^library_name: .*$", name, _THEIR_USE.sub("", text), count=1, flags=re.MULTILINE)
    return text + _filled({**use, "changes": "\n".join(f"- {line}" for line in lines)}, beginning="")


def _use_of_others(format: str, tag: str | None) -> dict[str, str]:
    """The hub's name for the library that opens the files; and how, if that is not this project."""
    if format != "huggingface":
        return {"library": "bert_tf"}
    library = "sentence-transformers" if tag == "sentence-similarity" else "transformers"
    opened = _OPENED.get(tag, f'pipeline("{tag}", "{PLACE}")') if tag else ""
    names = {"package": library.replace("-", "_"), "imported": re.split("[.(]", opened)[0]}
    return {"library": library, "opened": opened, **names}


def _filled(values: Mapping[str, object], beginning: str | None = None) -> str:
    """The template with these values, without the parts whose condition is none of them.

    beginning: instead of what is before the first condition.
    """
    first, *others = re.split(r"<!-- if (\w+) -->\n", _TEMPLATE.read_text(encoding="utf-8"))
    parts = [text for name, text in zip(others[::2], others[1::2], strict=True) if values.get(name)]
    return string.Template("".join([first if beginning is None else beginning, *parts])).substitute(values)


def _block(values: Mapping) -> str:
    """YAML of what is known, a line for each value, whatever text is in it; "" if there is nothing."""
    text = _yaml({name: " ".join(value.split()) if isinstance(value, str) else value for name, value in values.items()})
    return f"```yaml\n{text}```" if text else ""


def _yaml(values: Mapping) -> str:
    known = {name: value for name, value in values.items() if value is not None}
    return yaml.safe_dump(known, sort_keys=False, allow_unicode=True, width=1_000_000) if known else ""


def _sizes(files: ModelFiles, shapes: Mapping) -> dict[str, object]:
    config = files.needed_config()
    return {
        "layers": len(config.block_order),
        "width": config.hidden_size,
        "attention heads": config.num_attention_heads,
        "width of the feed-forward layers": config.intermediate_size,
        "width of the embeddings": config.embedding_size if config.embedding_size != config.hidden_size else None,
        "longest input": f"{config.max_length} tokens",
        "attention": "each token sees those before it" if config.is_causal else None,
        "vocabulary": f"{config.vocab_size:,} tokens",
        "case": {True: "uncased", False: "cased", None: None}[files.casing.do_lower_case],
        "parameters": f"{sum(math.prod(shapes[name]) for name in filter(is_model_variable, shapes)):,}",
        "head": files.head.variant and f"it {files.head.variant}",
    }


def shown_results(results: Mapping[str, float]) -> dict[str, float]:
    """The metrics to show of an evaluation's results: without its step, and without `loss` next to `eval_loss`.

    The first is the mean over batches, which the original writes, too; the second is the mean over examples.
    """
    hidden = {"step", "global_step"} | ({"loss"} if "eval_loss" in results else set())
    return {name: value for name, value in results.items() if name not in hidden}


def public(value: object) -> object:
    """A setting, or all of them, without the folders where their owner keeps files: of a path in the hub's cache the
    model's name and commit, of any other absolute one only the end. A flag may list files."""
    if isinstance(value, Mapping):
        return {name: public(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return ", ".join(str(public(inner)) for inner in value)
    if not isinstance(value, str):
        return value
    return ",".join(_end_of(hub.name_of(path)) for path in value.split(","))


def _end_of(path: str) -> str:
    """The last names of an absolute path; others as they are."""
    if not path.startswith(("/", "~")) and "://" not in path:
        return path
    *_, folder, name = ("", *path.rstrip("/").split("/"))
    return f"{folder}/{name}" if folder and ("." in name or name in _COMMON_NAMES) else name
