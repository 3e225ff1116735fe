"""From released weights to a model of a domain: texts, new words, records, pre-training, evaluation, fine-tuning."""

import dataclasses
import functools
import json
import math
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import keras
import tensorflow as tf
from absl import logging

from bert_tf.conversion.convert import OUTPUT_BIAS, convert
from bert_tf.families import family_of
from bert_tf.families.config import BertConfig
from bert_tf.families.family import REPLACED_TOKEN_HEAD
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.pretraining.documents import Document, all_documents, marked_held_out, to_text
from bert_tf.store.description import read_model_files
from bert_tf.store.open import open_model
from bert_tf.system import hub, storage
from bert_tf.system.declare import with_models
from bert_tf.system.messages import naming_flag
from bert_tf.system.storage import names_in, write_text_file, written
from bert_tf.system.text_files import list_files, read_json_if_there
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.tasks.script import fine_tune
from bert_tf.text.learn_vocabulary import count_words
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import FullTokenizer, WordpieceTokenizer
from bert_tf.training import run_directory
from bert_tf.training.pretraining_run import pretrain
from bert_tf.training.pretraining_settings import PretrainingSettings

_NEXT_SENTENCE_BIAS = "cls/seq_relationship/output_bias"
_WORDS_SHOWN = 20
_SECTION = "#" * 2  # which Markdown and word pieces have in common
_TEXTS = {"heldout": "the domain", "other": "the other text"}
_STARTS = {"released": "the released weights", "domain": "the domain's model"}


# --- the released weights, and how their family is trained ----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Start:
    """The released weights.

    has_head: whether they have the head that is trained, without which there is nothing to evaluate before.
    predicts_order: whether they have learned which segment follows another. notes: what a reader of losses must know.
    """

    config: BertConfig
    tokenizer: Tokenizer
    has_head: bool
    predicts_order: bool
    notes: tuple[str, ...]

    @property
    def record_settings(self) -> dict:
        """Settings of unmasked records: training draws new masks in each pass, evaluation always the same."""
        if self.config.detects_replaced_tokens:
            return {"rows": "electra"}
        has_word_pieces = issubclass(family_of(self.config).tokenizer_class, FullTokenizer)
        if not has_word_pieces and not self.config.has_pooler:
            return {"rows": "full_sentences"}
        if not self.predicts_order:
            return {"masking": "dynamic", "nsp": False}
        return {"masking": "dynamic", "next_sentence": self.config.pairs}

    @property
    def training_settings(self) -> dict:
        """Settings of training and evaluation; ELECTRA and RoBERTa have their authors' number of predictions."""
        detects = self.config.detects_replaced_tokens
        return {
            **({"objective": "electra"} if detects else {}),
            **({"max_predictions_per_seq": None} if detects or self.config.mask_rule == "roberta" else {}),
            "nsp": False if self.config.has_pooler and not self.predicts_order else None,
        }


def open_start(settings: DomainSettings) -> Start:
    """Reads the files next to the weights; raises for rows that the model does not take."""
    path = settings.init_checkpoint
    with naming_flag("--init_checkpoint"):
        opened = open_model(path, part="discriminator")
        config, weights, tokenizer = opened.needed_config(), opened.weights, opened.make_tokenizer(is_checked=True)
    if settings.max_seq_length > config.max_length:
        raise ValueError(f"--max_seq_length={settings.max_seq_length}: {path} takes {config.max_length} tokens.")
    predicts_order = config.has_pooler and _NEXT_SENTENCE_BIAS in weights.shapes
    detects, notes = config.detects_replaced_tokens, []
    has_head = (REPLACED_TOKEN_HEAD if detects else OUTPUT_BIAS) in weights.shapes
    if not has_head:
        notes.append(
            f"The weights have no {'head for replaced tokens' if detects else 'masked-LM head'}, so that it starts "
            "from random weights: there is nothing to evaluate before the training, and the losses after include "
            "what the head has learned."
        )
    elif detects:
        notes.append(
            "The generator, which is trained with the discriminator, starts from random weights: its loss before is "
            "that of guessing."
        )
    if config.has_pooler and not predicts_order:
        notes.append("The weights have no head for the order of sentences, so that is not trained.")
    for note in notes:
        logging.info("%s", note)
    return Start(config, tokenizer, has_head, predicts_order, tuple(notes))


# --- the steps ------------------------------------------------------------------------------------------------------


def adapt(settings: DomainSettings) -> dict:
    """Does all steps that are left, and writes the report; returns the content of domain.json.

    In it: `init_checkpoint`, `model` (the directory to use), `notes` on the losses, what `make_texts` and `make_words`
    return, `training` (its settings and `seconds` of its last start), `losses` (text -> `before`, unless the weights
    lacked the head, and `after`) and `fine_tuning` (start -> metric -> values of the seeds; empty without a task).
    """
    settings = with_models(settings, DomainSettings.check, settings.output_dir)
    job, output_dir = _Job(settings, open_start(settings)), settings.output_dir
    with storage.locked(job.path("run.lock"), f"--output_dir={output_dir}"):
        others = {*names_in(output_dir)} - {"run.lock"}
        if others and "results" not in others:
            raise ValueError(
                f"--output_dir={output_dir} has files that are not of run_domain.py ({min(others)}): choose another "
                "directory."
            )
        content = job.do_all()
        write_text_file(job.path("domain.json"), json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        write_text_file(job.path("domain.md"), create_page(content))
    return content


class _Job:
    def __init__(self, settings: DomainSettings, start: Start):
        self.settings, self.start = settings, start
        self.path = functools.partial(posixpath.join, settings.output_dir)
        self.start_folder, self.pretrained = self.path("start"), self.path("pretrained")

    def do_all(self) -> dict:
        """Does all steps, those that need no training first, so that mistakes show early."""
        settings, name = self.settings, hub.name_of(self.settings.init_checkpoint)
        model = self.path("pretrained", *["discriminator"] * self.start.config.detects_replaced_tokens)
        vocabulary_settings = {"init_checkpoint": name, "new_words": settings.new_words} | files_of(settings)
        made = self.do("texts", vocabulary_settings, self.make_texts)
        rows = self.do("records", {"max_seq_length": settings.max_seq_length}, lambda: self.make_records(made["texts"]))
        held_out = [text for text in rows if text != "train"]
        scores, losses = {}, {text: {} for text in held_out}
        for text in held_out if self.start.has_head else ():
            losses[text]["before"] = self.evaluate(text, "before", self.start_folder)
        if settings.train_file:
            scores["released"] = self.fine_tune("released", settings.init_checkpoint)
        training = self.train(rows["train"])
        for text in held_out:
            losses[text]["after"] = self.evaluate(text, "after", self.pretrained)
        if settings.train_file:
            scores["domain"] = self.fine_tune("domain", model)
        content = {"init_checkpoint": name, "model": model, "notes": list(self.start.notes), **made}
        return content | {"training": training, "losses": losses, "fine_tuning": scores}

    def make_texts(self) -> dict:
        settings, start = self.settings, self.start
        counts = make_texts(settings)
        words = make_words(settings, start.tokenizer, start.config.title)
        added = self.path(WORDS) if words["new_words"] else None
        conversion = convert(settings.init_checkpoint, self.start_folder, "bert_tf", add_tokens=added, overwrite=True)
        write_text_file(self.path("start.txt"), conversion.text() + "\n")
        return {"texts": counts, **words}

    def make_records(self, texts: Mapping[str, Mapping]) -> dict[str, int]:
        """Writes the records of all texts; returns their numbers."""
        vocab_file, rows = read_model_files(self.start_folder).vocab_file, {}
        options = {"max_seq_length": self.settings.max_seq_length, **self.start.record_settings}
        for name in texts:
            paths = text_path(self.settings, name), self.path("records", f"{name}.tfrecord")
            rows[name] = create_pretraining_data(*paths, vocab_file, **options)["rows"]
        return rows

    def _pretraining(self, text: str, model: str, output_dir: str, **further) -> PretrainingSettings:
        train, held_out = (self.path("records", f"{name}.tfrecord") for name in ("train", text))
        paths = {"input_file": train, "eval_input_file": held_out, "init_checkpoint": model, "output_dir": output_dir}
        return self.settings.pretraining(**paths, **self.start.training_settings, **further)

    def evaluate(self, text: str, when: str, model: str) -> dict[str, float]:
        """Results on a held-out text, of the model "before" or "after" the training."""
        run = self._pretraining(text, model, self.path("evaluation", f"{text}-{when}"), do_eval=True)
        return self.do(
            f"evaluation-{text}-{when}",
            vars(run),
            lambda: {metric: float(value) for metric, value in sorted(pretrain(run).items())},
        )

    def train(self, rows: int) -> dict:
        """rows: the number of records of the training text."""
        settings = self.settings
        steps = settings.num_train_steps or math.ceil(rows / settings.train_batch_size)
        run = self._pretraining("heldout", self.start_folder, self.pretrained, **settings.training(steps))

        def trained() -> dict:
            started = time.monotonic()
            pretrain(run)
            return {"seconds": round(time.monotonic() - started, 1)}

        kept = {"train_batch_size": settings.train_batch_size, "learning_rate": settings.learning_rate}
        return {"records": rows, "steps": steps, **kept, **self.do("pretraining", vars(run), trained)}

    def fine_tune(self, name: str, model: str) -> dict[str, list[float]]:
        """The user's task, from the model of this name; of each metric a value for each seed."""
        task, run = self.settings.fine_tuning(model, self.path("fine_tuning", name))

        def scores() -> dict[str, list[float]]:
            best = fine_tune(ClassificationTask(task), run)
            seeds = read_json_if_there(posixpath.join(run.output_dir, run_directory.SEEDS))
            results = seeds["seeds"].values() if seeds else [best]
            return {metric: [float(values[metric]) for values in results] for metric in sorted(best)}

        return self.do(f"fine_tuning-{name}", vars(task) | vars(run), scores)

    def do(self, name: str, settings: Mapping[str, object], step: Callable[[], dict]) -> dict:
        """The results of a step, which is done unless results/NAME.json has them; raises if its settings changed."""
        path, settings = self.path("results", f"{name}.json"), json.loads(json.dumps(settings))
        kept = read_json_if_there(path) or {"settings": settings}
        then = kept["settings"]
        if changed := [f"--{key}" for key in settings if settings[key] != then.get(key, settings[key])]:
            raise ValueError(
                f"--output_dir={self.settings.output_dir} holds a job with another {' and '.join(changed)} ({path}): "
                "choose another directory, or give what it was made with."
            )
        if "results" not in kept:
            logging.info("Step %s", name)
            tf.io.gfile.makedirs(posixpath.dirname(path))
            write_text_file(path, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
            try:
                kept["results"] = step()
            except (ValueError, OSError):  # the corrected command has other settings
                write_text_file(path, "{}\n")
                raise
            keras.backend.clear_session()
            write_text_file(path, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
        return kept["results"]


# --- the report: domain.json as Markdown ----------------------------------------------------------------------------


def create_page(content: dict) -> str:
    training, counts = content["training"], content["texts"].items()
    passes = training["steps"] * training["train_batch_size"] / training["records"]
    sizes = ([name, f"{of['documents']:,}", f"{of['sentences']:,}", f"{of['bytes'] / 1e6:.2f}"] for name, of in counts)
    lines = [
        "# A domain's model\n",
        f"From `{content['init_checkpoint']}`, trained for {training['steps']:,} steps of "
        f"{training['train_batch_size']} rows ({passes:.2g} passes over {training['records']:,} records), with a "
        f"learning rate of {training['learning_rate']:g}.\n",
        *_table(["text", "documents", "sentences", "MB"], sizes),
        f"\n{_SECTION} New words",
        *_words(content["new_words"], content["pieces_per_word"]),
        *_losses(content["losses"], content["notes"]),
    ]
    if scores := content["fine_tuning"]:
        metrics = _metrics(scores["released"])
        rows = ([_STARTS[start], *(_spread(of[name]) for name in metrics)] for start, of in scores.items())
        lines += [
            f"\n{_SECTION} Fine-tuning, from both starts",
            *_table(["", *metrics], rows),
            f"\nMean of {len(scores['released'][metrics[0]])} seeds, lowest to highest: what differs less may be "
            "chance.",
        ]
    lines.append(
        f"\nTo use it: `python run_classifier.py --init_checkpoint={content['model']} ...`, or any other script that "
        f'takes `--init_checkpoint`; in Python `from_pretrained("{content["model"]}")`.'
    )
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in (header, *rows)]
    return [lines[0], f"|{'---|' * len(header)}", *lines[1:]]


def _metrics(results: Mapping[str, object]) -> list[str]:
    return [name for name in results if name not in ("global_step", "loss", "eval_loss")]


def _words(words: Sequence[Mapping], pieces: Mapping[str, float]) -> list[str]:
    if not words:
        return ["None."]
    rows = ([new["word"], f"{new['count']:,}", " ".join(new["pieces"])] for new in words[:_WORDS_SHOWN])
    return [
        f"{len(words)} words that were cut into several pieces now are one each: {pieces['after']:.3f} pieces per "
        f"word of the training text instead of {pieces['before']:.3f}. The first, by what they save:\n",
        *_table(["word", "times", "was"], rows),
    ]


def _losses(losses: Mapping[str, Mapping[str, Mapping]], notes: Sequence[str]) -> list[str]:
    columns = {f"{_TEXTS[text]}, {when}": scores for text, of in losses.items() for when, scores in of.items()}
    names = _metrics(losses["heldout"]["after"])
    lines = [
        f"\n{_SECTION} Losses on text that it was not trained on",
        *_table(["", *columns], ([name, *(f"{of[name]:.3f}" for of in columns.values())] for name in names)),
        "\n![Losses](pretrained/loss.png)\n",
        *notes,
    ]
    if "before" in losses["heldout"]:
        lines.append(
            "Both models have the same vocabulary, new words included, so their losses can be compared. Those of a "
            "model with another vocabulary can't: it predicts other tokens."
        )
        if "other" in losses:
            lines.append("An increase of the losses of the other text measures what was forgotten.")
    return lines


def _spread(values: Sequence[float]) -> str:
    mean = f"{sum(values) / len(values):.4f}"
    return f"{mean} ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else mean


# --- texts and new words ----------------------------------------------------------------------------------------------


WORDS = "words.txt"  # the new words, in output_dir
_LEAST_COUNT = 5  # a word that is hardly there can't be learned
_LONGEST_WORD = 60  # characters; longer ones are not words


def text_path(settings: DomainSettings, name: str) -> str:
    """Where the text "train", "heldout" or "other" is."""
    return posixpath.join(settings.output_dir, "text", f"{name}.txt")


def files_of(settings: DomainSettings) -> dict[str, list[tuple[str, int]]]:
    """flag -> (path, bytes) of its files."""
    patterns = {name: getattr(settings, name) for name in ("input_file", "heldout_file", "other_text")}
    return {
        name: [(path, tf.io.gfile.stat(path).length) for path in list_files(files, f"--{name}")] if files else []
        for name, files in patterns.items()
    }


def make_texts(settings: DomainSettings) -> dict[str, dict[str, int]]:
    """Writes text/train.txt, heldout.txt and, of --other_text, other.txt.

    Returns name -> `documents`, `sentences` and `bytes`.
    """
    tf.io.gfile.makedirs(posixpath.join(settings.output_dir, "text"))
    flags = {"train": "input_file", "heldout": "heldout_file" if settings.heldout_file else "input_file"}
    flags |= {"other": "other_text"} if settings.other_text else {}
    counts = {}
    for name, flag in flags.items():
        counts[name] = of = {"documents": 0, "sentences": 0, "bytes": 0}
        with written(text_path(settings, name)) as temporary, tf.io.gfile.GFile(temporary, "wb") as file:
            for document in _documents(settings, name, flag):
                content = to_text([document]).encode()
                file.write(content)
                of["documents"] += 1
                of["sentences"] += len(document)
                of["bytes"] += len(content)
        if not of["documents"]:
            raise ValueError(f"--{flag}={getattr(settings, flag)}: there is no text in it.")
    logging.info("Texts: %s", counts)
    return counts


def _documents(settings: DomainSettings, name: str, flag: str) -> Iterator[Document]:
    documents = all_documents(list_files(getattr(settings, flag), f"--{flag}"), encoding=settings.encoding)
    if name == "other" or settings.heldout_file:
        yield from documents
    else:
        with naming_flag("--input_file, without --heldout_file"):
            for document, is_held_out in marked_held_out(documents):
                if is_held_out == (name == "heldout"):
                    yield document


def make_words(settings: DomainSettings, tokenizer: Tokenizer, title: str) -> dict:
    """Writes the words to add, if any, to words.txt. title: of the model's family.

    Returns `new_words`, see `find_new_words`, and `pieces_per_word` of the training text, `before` and `after`.
    """
    words, pieces = [], {"before": None, "after": None}
    if settings.new_words and not isinstance(tokenizer, FullTokenizer):
        logging.info("No new words: %s has no word pieces, to which words could be added.", title)
    elif settings.new_words:
        counts = count_words([text_path(settings, "train")], tokenizer.basic_tokenizer.tokenize).counts
        words = find_new_words(counts, tokenizer, settings.new_words)
        added = [new["word"] for new in words]
        pieces = {"before": pieces_per_word(counts, tokenizer), "after": pieces_per_word(counts, tokenizer, added)}
        if words:
            write_text_file(posixpath.join(settings.output_dir, WORDS), "".join(word + "\n" for word in added))
    return {"new_words": words, "pieces_per_word": pieces}


def find_new_words(counts: Mapping[str, int], tokenizer: FullTokenizer, most: int) -> list[dict]:
    """The words whose addition shortens the text most, by count x (pieces - 1), the best first.

    Left out are words that are in the text less than 5 times, and what has no letter in it. A word that is unknown as a
    whole counts as two pieces. counts: of the tokenizer's basic tokens.
    """
    cut, unknown = tokenizer.wordpiece_tokenizer.cut, tokenizer.unk_token
    ranked = []
    for word, count in counts.items():
        if count < _LEAST_COUNT or len(word) > _LONGEST_WORD or not any(map(str.isalpha, word)):
            continue
        pieces = list(cut(word))
        gain = count if pieces == [unknown] else count * (len(pieces) - 1)
        # A token that does not come out of the tokenizer as it went in would never be used.
        if gain and tokenizer.basic_tokenizer.tokenize(word) == [word]:
            ranked.append((-gain, word, {"word": word, "count": count, "pieces": pieces}))
    return [new for _, _, new in sorted(ranked, key=lambda entry: entry[:2])[:most]]


def pieces_per_word(counts: Mapping[str, int], tokenizer: FullTokenizer, added: Sequence[str] = ()) -> float:
    """The mean number of pieces of a word of the text, with some words added to the vocabulary."""
    cut = WordpieceTokenizer({**tokenizer.vocab, **dict.fromkeys(added, -1)}).cut
    return sum(count * len(cut(word)) for word, count in counts.items()) / sum(counts.values())
