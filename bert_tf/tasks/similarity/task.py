"""Vectors of texts for the fine-tuning run: examples, model, metrics and files of run_similarity.py."""

import dataclasses
import functools
import posixpath

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import token_rows
from bert_tf.models.layers import finished
from bert_tf.models.similarity import RANKING_SCALE, TRIPLET_MARGIN, BertForSimilarity
from bert_tf.store.description import SIMILARITIES, SentenceSettings, read_sentence_settings
from bert_tf.store.head_config import NO_HEAD
from bert_tf.system.checks import check_extra
from bert_tf.system.declare import value_of
from bert_tf.system.messages import naming_flag
from bert_tf.system.text_files import directory_of, exists
from bert_tf.tasks.outcome import write_predictions
from bert_tf.tasks.rows import log_groups, write_group_records
from bert_tf.tasks.similarity import data, metrics
from bert_tf.tasks.task import LOGGED_EXAMPLES, ExampleSet, FineTuningTask


class SimilarityTask(FineTuningTask):
    """Vectors of texts that are alike are near.

    settings: `SimilaritySettings`.
    embedder_class: `Embedder`, which --mine_hard_negatives needs.
    """

    name = "encoder"
    write_records = staticmethod(functools.partial(write_group_records, row="text"))

    def __init__(self, settings, embedder_class: type | None = None):
        super().__init__(settings)
        self.embedder_class = embedder_class

    def load(self, run, files, tokenizer):
        settings, earlier = self.settings, self.earlier.settings if self.earlier.newest else {}
        sentences = self._sentences(run)
        files.sentences = dataclasses.replace(sentences, max_seq_length=run.max_seq_length)
        files.head = NO_HEAD
        self.files = files

        def read(kind: str) -> list[data.SimilarityExample]:
            options = {"score_range": settings.scores_between, "partners": kind != "test"}
            with naming_flag(f"--{kind}_file"):
                path, table = getattr(settings, f"{kind}_file"), settings.of_set(kind)
                return data.read_examples(path, settings.columns, table=table, **options)

        needed = {"train": run.do_train, "dev": run.do_eval, "test": run.do_predict}
        read_sets = {kind: read(kind) for kind, is_needed in needed.items() if is_needed}
        scored = [kind for kind, examples in read_sets.items() if examples[0].score is not None]
        if not scored and settings.scores_between != (0.0, 1.0):
            raise ValueError("--score_range is for scores, and there are none: name their column by --score.")
        if run.do_eval and "dev" not in scored:
            check_extra("metrics", "--dev_file without scores")
        if run.do_train:
            pairs = read_sets["train"]
            self._choose_loss(run, earlier, len(pairs[0].texts), "train" in scored)
            if settings.mine_hard_negatives:
                read_sets["train"] = self._with_hard_negatives(run, pairs)

        def encoded(kind: str) -> ExampleSet:
            examples = read_sets[kind]
            logging.info("--%s_file: %d examples of %d texts", kind, len(examples), len(examples[0].texts))
            rows = data.encode_examples(examples, tokenizer, run.max_seq_length, sentences.lower, sentences.prompt())
            return ExampleSet(kind, rows, examples)

        self.main_metric = "eval_spearman" if "dev" in scored else "eval_mrr_10"
        if run.do_train:
            self.train_rows = encoded("train").rows
            log_groups(self.train_rows, tokenizer, LOGGED_EXAMPLES, "text")
        if run.do_eval:
            self.dev_sets = [encoded("dev")]
        if run.do_predict:
            self.test_sets = [encoded("test")]

    def _with_hard_negatives(self, run, pairs: list) -> list:
        """Pairs with mined negatives. A run that goes on takes those of its beginning."""
        settings, path = self.settings, posixpath.join(run.output_dir, "hard_negatives.jsonl")
        if not (self.earlier.newest and exists(path)):
            options = {"pooling": self.files.sentences.pooling, "batch_size": run.predict_batch_size}
            embedder = self.embedder_class(run.init_checkpoint, max_seq_length=run.max_seq_length, **options)
            tf.io.gfile.makedirs(run.output_dir)
            count, margin = settings.mine_hard_negatives, value_of(settings, "negatives_margin")
            vectors_of = functools.partial(embedder.encode, normalize=True)
            metrics.write_hard_negatives(path, pairs, vectors_of, count, margin)
        return data.read_examples(path, metrics.MINED_COLUMNS)

    def _sentences(self, run) -> SentenceSettings:
        """How vectors are made: as the flags say, else the directory of the weights."""
        settings, directory = self.settings, directory_of(self.source or run.output_dir)
        stored = read_sentence_settings(directory)
        pooling = stored.pooling if settings.pooling is None else settings.pooling
        normalize = stored.normalize if settings.normalize is None else settings.normalize
        if self.earlier.newest and stored.described and pooling != stored.pooling:
            raise ValueError(
                f"--pooling={pooling}: the run in --output_dir={run.output_dir} began with {stored.pooling}. Choose "
                "another directory."
            )
        if stored.prompt():
            logging.info("Before every text: %r, the prompt %r.", stored.prompt(), stored.default_prompt_name)
        if not stored.include_prompt and stored.prompt():
            raise ValueError(f"{directory} leaves its prompt out of the pooling, which can't be trained here.")
        logging.info("Pooling: %s%s.", pooling, "" if stored.described or settings.pooling else ", the default")
        similarity = "cosine" if run.do_train else stored.similarity
        if similarity not in SIMILARITIES:
            raise ValueError(f"{directory}: vectors are compared by cosine or dot here, not by {similarity!r:.80}.")
        if similarity != stored.similarity:
            logging.warning("%s compares vectors by %r; the trained model by cosine.", directory, stored.similarity)
        return dataclasses.replace(stored, pooling=pooling, normalize=normalize, similarity=similarity)

    def _choose_loss(self, run, earlier: dict, texts: int, has_scores: bool) -> None:
        """Chooses loss and negatives_batch_size, before negatives are mined, for training examples of so many texts."""
        settings = self.settings
        loss = settings.loss_of(texts, has_scores)
        if not settings.loss:
            logging.info("--loss=%s, since --train_file has %sscores.", loss, "no " if loss == "ranking" else "")
        self.given = dataclasses.replace(settings, loss=loss)  # what `begin` chooses for a run is not in it
        self.texts = 3 if settings.mine_hard_negatives else texts
        self.begun_size = earlier.get("negatives_batch_size")
        self.begin(run)
        if loss == "ranking":
            logging.info("Negatives of a text are those of %d examples.", self.settings.negatives_batch_size)

    def begin(self, run):
        if run.do_train:
            settings = self.given
            size = settings.negatives(run, settings.loss, self.texts, self.num_replicas, self.begun_size)
            self.settings = dataclasses.replace(settings, negatives_batch_size=size)

    def create_model(self, dtype):
        settings, pooling = self.settings, self.files.sentences.pooling
        scale, margin = settings.ranking_scale or RANKING_SCALE, settings.triplet_margin or TRIPLET_MARGIN
        options = {"pooling": pooling, "scale": scale, "margin": margin, "dtype": dtype}
        return BertForSimilarity(self.files.config, settings.loss or "ranking", **options)

    def training_batches(self, *, batch_size, share, **arguments):
        batches = token_rows.training_batches(self.train_rows, batch_size=batch_size, share=share, **arguments)
        size = self.settings.negatives_batch_size
        if not size:
            return batches
        numbers = tf.range(share.part_size(batch_size)) // size
        numbered = tf.autograph.experimental.do_not_convert(lambda batch: {**batch, "negatives_batch": numbers})
        return batches.map(numbered)

    def texts_of(self, examples):
        return list(examples[0].texts)

    def score(self, examples, vectors, batch_size):
        return metrics.evaluate(examples.rows, self._compared(vectors))

    def write_predictions(self, output_dir, examples, vectors):
        similarity, described = self.files.sentences.similarity, []
        products = metrics.products_of(self._compared(vectors)).tolist()
        for example, product in zip(examples.examples, products, strict=True):
            described.append({similarity: product} | ({} if example.score is None else {"score": example.score}))
        paths = write_predictions(output_dir, "", examples.examples, described, zip(products))
        logging.info("Wrote the %s of %d pairs to %s.", similarity, len(products), " and ".join(paths))

    def _compared(self, vectors):
        """Vectors whose products are what they are compared by."""
        sentences = self.files.sentences
        return np.asarray(finished(vectors, sentences, None if sentences.similarity == "dot" else True))
