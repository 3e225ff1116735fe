"""Tagging of words for the fine-tuning run: sentences, model, metrics and files of run_ner.py."""

import dataclasses
import itertools
import json
import posixpath
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.models.task_models import BertForTokenClassification
from bert_tf.store.head_config import HeadConfig, difference, softmax, spelled_as
from bert_tf.system.messages import abbreviated_list, naming_flag
from bert_tf.system.storage import write_text_file
from bert_tf.system.text_files import directory_of, list_files
from bert_tf.tasks.classification.settings import class_weights
from bert_tf.tasks.ner import data, encode, metrics
from bert_tf.tasks.ner.data import Sentence, predicted_tags, raw_tags, tags_by_sentence
from bert_tf.tasks.ner.metrics import OUTSIDE, PIECES, SETTINGS_FILE, TaggingSettings
from bert_tf.tasks.table import TASKS
from bert_tf.tasks.task import LOGGED_EXAMPLES, ExampleSet, FineTuningTask
from bert_tf.training import run_directory
from bert_tf.training.starting_model import StartingHead


class NerTask(FineTuningTask):
    """A tag for each word: named entities, or any other tags. settings: `NerSettings`."""

    name = "ner"
    write_records = staticmethod(encode.write_records)

    def describe(self, run, earlier):
        run, files, tokenizer = super().describe(run, earlier)
        settings, newest = self.settings, earlier.newest
        with naming_flag("--output_dir" if newest else "--init_checkpoint"):
            stored = TaggingSettings.read(directory_of(self.source)) if self.source else None
        scheme, context = metrics.learned_scheme(settings.tag_scheme), settings.document_context
        self.chooses_split = stored is None or (run.do_train and not newest)
        if self.chooses_split:
            stored = TaggingSettings(learned_scheme=scheme, document_context=bool(context))
        if context not in (None, stored.document_context):
            raise ValueError(
                f"--document_context={context} contradicts {self.source}, which was trained with "
                f"{stored.document_context}."
            )
        # A file's scheme may differ from the one the model learned; only plain tags and entities don't mix.
        if "plain" in (scheme, stored.learned_scheme) and scheme != stored.learned_scheme:
            raise ValueError(
                f"--tag_scheme={settings.tag_scheme} contradicts {self.source}, which was trained on tags of the kind "
                f"{stored.learned_scheme}."
            )
        self.tagging = stored
        self.settings = dataclasses.replace(settings, document_context=stored.document_context)
        return run, files, tokenizer

    def texts_of(self, sentences):
        return [(" " if self.tagging.split == "words" else "").join(sentences[0].words)]

    def load(self, run, files, tokenizer):
        settings, scheme = self.settings, self.tagging.learned_scheme
        added = {token.content for token in tokenizer.added_tokens.tokens}
        train = self._tagged_sentences("train") if run.do_train else []
        dev = self._tagged_sentences("dev") if run.do_eval else []
        test = None
        if run.do_predict:
            test, *others = self._read("test", settings.test_has_tags)
            if others:
                raise ValueError(f"--test_file={settings.test_file} is {len(others) + 1} files; give one.")
            self._log(test.sentences, "--test_file")
        read = {"--train_file": train, "--dev_file": dev, "--test_file": test.sentences if test else []}
        self._find_split({flag: data.split_of(sentences, added) for flag, sentences in read.items() if sentences})
        tagged = {"--dev_file": dev, "--test_file": test.sentences if test and test.sentences[0].tags else []}
        head = self.starting_head
        if run.do_train:
            with naming_flag("--train_file"):
                self.labels = self._labels_to_learn(labels_of(train, scheme), head)
        elif head and head.labels:  # of a trained model, spelled as in the data
            tags = {tag for sentences in tagged.values() for sentence in sentences for tag in sentence.tags}
            self.labels = list(spelled_as(metrics.standard_tags(head.labels), sorted(tags)))
        else:
            raise ValueError(f"{self.source} does not say which tags it has learned (labels in its head_config.json).")
        model_tags = head.labels if head and head.labels else ()
        spellings = dict(zip(spelled_as(metrics.standard_tags(model_tags), self.labels), model_tags, strict=True))
        self.other_labels = tuple(spellings.get(label, label) for label in self.labels)
        for flag, sentences in tagged.items():
            self._check_tags(flag, sentences, run)
        files.head = HeadConfig(TASKS[self.name].architecture, self.labels)
        self.files, self.main_metric = files, "eval_accuracy" if scheme == "plain" else "eval_f1"
        if settings.metric == "klue":
            self.main_metric = "eval_entity_macro_f1"
            for flag, sentences in tagged.items():
                if data.split_of(sentences) == "words":
                    raise ValueError(f"--metric=klue scores characters: {flag} must have a character a line.")

        options = {"doc_stride": settings.doc_stride, "document_context": self.tagging.document_context}
        options["of_pieces"] = self.tagging.split == PIECES

        def encoded(sentences: list, with_labels: bool = False) -> encode.WordRows:
            ids = {label: number for number, label in enumerate(self.labels)} if with_labels else None
            return encode.encode_sentences(sentences, tokenizer, run.max_seq_length, label_ids=ids, **options)

        if run.do_train:
            self.train_rows = encoded(train, with_labels=True)
            if settings.class_weights is not None:
                ids = self.train_rows.labels["label_ids"]
                self.class_weights = class_weights(settings.class_weights, self.labels, ids[ids >= 0])
            encode.log_rows(self.train_rows, self.labels, tokenizer, LOGGED_EXAMPLES)
        if run.do_eval:
            self.dev_sets = [ExampleSet("eval", encoded(dev), dev)]
        if run.do_predict:
            self.test_sets = [ExampleSet("test", encoded(test.sentences), test)]

    def _find_split(self, splits: dict[str, str]) -> None:
        """Takes the split of the first file where the model has none, and warns of others. splits: flag -> split."""
        flag, split = next(iter(splits.items()))
        if self.chooses_split:
            of_pieces = self.tagging.learned_scheme == "iob2" and not self.settings.character_tokens
            if split == "characters_and_spaces" and of_pieces:
                split = PIECES
                message = "%s has a character a line: each piece of its texts has the tag of the first (not so for a "
                logging.info(message + "model of characters: --character_tokens).", flag)
            elif split != "words":
                logging.info("%s has a character a line: `Tagger` and exports will split texts likewise.", flag)
            self.tagging = dataclasses.replace(self.tagging, split=split)
        kinds = {True: "words", False: "single characters"}
        for flag, split in splits.items():
            given, learned = split == "words", self.tagging.split == "words"
            if given != learned:
                logging.warning("%s has %s, but the model was trained on %s.", flag, kinds[given], kinds[learned])

    def _read(self, kind: str, has_tags: bool = True) -> list[data.ConllFile]:
        flag = f"--{kind}_file"
        paths = list_files(getattr(self.settings, f"{kind}_file"), flag)
        with naming_flag(flag):
            return [data.read_conll(path, self.settings, self.tagging.learned_scheme, has_tags) for path in paths]

    def _tagged_sentences(self, kind: str) -> list[data.Sentence]:
        sentences, documents = [], 0
        for file in self._read(kind):
            if file.sentences[0].tags is None:
                raise ValueError(f"--{kind}_file: {file.path} has words only, and no column of tags.")
            # Documents of different files are different ones.
            sentences += [dataclasses.replace(s, document=s.document + documents) for s in file.sentences]
            documents += file.sentences[-1].document + 1
        self._log(sentences, f"--{kind}_file")
        return sentences

    def _log(self, sentences: list[data.Sentence], flag: str) -> None:
        documents, words = sentences[-1].document + 1, sum(len(sentence.words) for sentence in sentences)
        logging.info("%s: %d words, %d sentences, %d documents", flag, words, len(sentences), documents)
        if self.tagging.document_context and documents == 1 and len(sentences) > 1:
            logging.warning("--document_context: %s has no %s: it is one document.", flag, data.DOCUMENT_START)

    def _labels_to_learn(self, labels: list[str], head: StartingHead | None) -> list[str]:
        """The tags of the data; if the model knows these and more, all of the model's tags."""
        head_tags = spelled_as(metrics.standard_tags(head.labels), labels) if head and head.labels else ()
        if not set(labels) < set(head_tags):
            return labels
        further = abbreviated_list(sorted({*head_tags} - {*labels}))
        logging.info("%s knows further tags, which it keeps: %s.", head.source, further)
        return list(head_tags)

    def _check_tags(self, flag: str, sentences: list[data.Sentence], run) -> None:
        tags = {}  # and where the first word with each is
        for sentence in sentences:
            for tag, line in zip(sentence.tags, sentence.lines, strict=True):
                if tag not in tags:
                    tags[tag] = f"{tag} ({sentence.path}, line {line})"
        unknown = [where for tag, where in tags.items() if tag not in self.labels]
        named = abbreviated_list(unknown)
        if unknown and run.do_train:
            raise ValueError(f"{flag} has tags that --train_file lacks, so that they can't be learned: {named}.")
        if unknown and not {*tags} & {*self.labels} - {OUTSIDE}:
            raise ValueError(f"{flag} has other tags than {self.source}: {difference(self.labels, sorted(tags))}.")
        if unknown:
            logging.warning("%s has tags that the model does not know and can't predict: %s.", flag, named)

    def create_model(self, dtype):
        return BertForTokenClassification(self.files.config, len(self.labels), labels=self.labels, dtype=dtype)

    def training_batches(self, **arguments):
        return encode.training_batches(self.train_rows, **arguments)

    def write_beside_training(self, output_dir):
        write_text_file(posixpath.join(output_dir, SETTINGS_FILE), self.tagging.to_json())

    def further_files(self, examples, logits):
        return {SETTINGS_FILE: self.tagging.to_json()}

    def outputs_of(self, predict, examples, *, batch_size, **padding):
        rows, batches = examples.rows, token_rows.evaluation_batches(examples.rows, batch_size=batch_size, **padding)
        logits = encode.word_logits(rows, token_rows.rows_and_outputs(rows, batch_size, predict(batches)))
        return encode.character_logits(rows, logits, self.labels)

    def scores_of(self, kind: str, sentences: Sequence[Sentence], logits: np.ndarray) -> tuple[dict[str, float], str]:
        """`<kind>_<score>` of `metrics.evaluate`, for --metric=klue also of `metrics.klue`; the loss of the words'
        tags; and a table by type.

        Tags are scored as they are in the file and as they are predicted, also broken ones. A tag that the model does
        not know counts as wrong; the loss leaves it out.
        """
        plain = self.tagging.learned_scheme == "plain"
        gold = [sentence.raw_tags or sentence.tags for sentence in sentences]
        predicted = raw_tags(sentences, logits, self.labels)
        results = metrics.evaluate(gold, predicted, plain=plain)
        if self.settings.metric == "klue":
            kept = [[not word.isspace() for word in sentence.words] for sentence in sentences]
            tags = ([[*itertools.compress(*pair)] for pair in zip(of, kept, strict=True)] for of in (gold, predicted))
            results |= metrics.klue(*tags, metrics.tag_set("iob2", metrics.types_of(self.labels)))
        number = {label: index for index, label in enumerate(self.labels)}
        ids = np.array([number.get(tag, -1) for sentence in sentences for tag in sentence.tags])
        has_id = ids >= 0
        losses = -np.log(np.maximum(softmax(logits[has_id])[np.arange(has_id.sum()), ids[has_id]], 1e-30))
        results["loss"] = float(losses.mean()) if len(losses) else 0.0
        report = metrics.report(gold, predicted, plain=plain)
        return {f"{kind}_{name}": value for name, value in results.items()}, report

    def score(self, examples, logits, batch_size):
        return self.scores_of("eval", examples.examples, logits)[0]

    def write_analysis(self, output_dir, examples, logits, results):
        sentences, plain = examples.examples, self.tagging.learned_scheme == "plain"
        report = self.scores_of("eval", sentences, logits)[1]
        logging.info("Step %d, eval:\n%s", results["global_step"], report)
        write_text_file(posixpath.join(output_dir, "eval_report.txt"), report)

        def kinds(tags_of_sentences) -> list[str]:
            return [tag if plain else tag.partition("-")[2] or tag for tags in tags_of_sentences for tag in tags]

        gold = kinds([sentence.tags for sentence in sentences])
        predicted = kinds(raw_tags(sentences, logits, self.labels))
        if len({*predicted}) == 1 < len({*gold}):
            logging.warning("All %d words are tagged %r: the model tells none apart.", len(predicted), predicted[0])
        names = sorted({*gold, *predicted}, key=lambda name: (name == OUTSIDE, name))
        numbers = (list(map(names.index, of_words)) for of_words in (gold, predicted))
        self.plot_confusion(output_dir, f"{'Tags' if plain else 'Types'} of words, dev set", *numbers, names, results)

    def write_predictions(self, output_dir, examples, logits):
        """Writes predictions.conll, the file with one more column, and predictions.jsonl.

        The second has words, tags and entities of a sentence a line; start and end of an entity count words, its score
        is the mean probability of the likeliest tags of its words.
        """
        file, layout, lines = examples.examples, self.settings, []
        between = " " if data.split_of(file.sentences) == "words" else ""
        tags = predicted_tags(file.sentences, logits, self.labels, layout.tag_scheme)
        paths = [posixpath.join(output_dir, f"predictions.{suffix}") for suffix in ("conll", "jsonl")]
        data.write_conll(paths[0], file, tags, layout)
        best = tags_by_sentence(file.sentences, softmax(logits).max(-1).tolist())
        for sentence, of_words, probabilities in zip(file.sentences, tags, best, strict=True):
            record = {"words": sentence.words, "tags": of_words}
            if layout.tag_scheme != "plain":
                record["entities"] = []
                for type_, start, end in map(dataclasses.astuple, metrics.entities_of(of_words, layout.tag_scheme)):
                    text, score = between.join(sentence.words[start:end]), float(np.mean(probabilities[start:end]))
                    entity = {"type": type_, "start": start, "end": end, "text": text, "score": round(score, 4)}
                    record["entities"].append(entity)
            lines.append(json.dumps(record, ensure_ascii=False) + "\n")
        write_text_file(paths[1], "".join(lines))
        logging.info("Wrote the tags of %d sentences to %s.", len(lines), " and ".join(paths))

    def score_predictions(self, output_dir, examples, logits, step, batch_size):
        sentences = examples.examples.sentences
        if sentences[0].tags is None:
            return
        results, report = self.scores_of("test", sentences, logits)
        logging.info("Step %d, test:\n%s", step, report)
        path = posixpath.join(output_dir, "test_results.txt")
        run_directory.write_eval_results(path, {**results, "global_step": step})
        write_text_file(posixpath.join(output_dir, "test_report.txt"), report)


_FEWEST_WORDS = 5  # of fewer words, each may well have a tag of its own


def labels_of(sentences: Sequence[Sentence], scheme: str) -> list[str]:
    """The tags to learn: for entities all tags of the types in the data, also those that happen not to occur."""
    every = [tag for sentence in sentences for tag in sentence.tags]
    tags = set(every)
    if scheme == "plain" and len(tags) == len(every) >= _FEWEST_WORDS:
        raise ValueError(f"--tag_column: each of the {len(every)} words has a tag of its own, as {every[0]!r}.")
    if len(tags) == 1:
        raise ValueError(f"all words have the same tag, {tags.pop()!r}: there is nothing to learn.")
    if scheme == "plain":
        return sorted(tags)
    return metrics.tag_set(scheme, metrics.types_of(tags))
