"""The settings of run_ner.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import dataclasses
from collections.abc import Mapping

from bert_tf.models.directory import read_head
from bert_tf.models.head_config import HeadConfig, names_in, spelled_as
from bert_tf.system.checks import check_input_files
from bert_tf.system.declare import setting
from bert_tf.system.messages import naming_flag, without_logging
from bert_tf.system.storage import is_remote
from bert_tf.system.text_files import encoding_setting
from bert_tf.tasks.classification.label_checks import check_class_weights, check_labels_of, class_weights_setting
from bert_tf.tasks.ner import data
from bert_tf.tasks.ner.tagging import TaggingSettings, choose_tagging
from bert_tf.tasks.ner.tags import OUTSIDE, learned_scheme, standard_tags, tag_set, types_of
from bert_tf.tasks.table import TASKS
from bert_tf.text.tokenizer_files import directory_of
from bert_tf.training.settings import FineTuningSettings
from bert_tf.training.starting_model import StartingHead, stored_head
from bert_tf.weights.bundle import latest_checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class NerSettings:
    """Files of words and tags, and which model learns them.

    Attributes:
      document_context: None: as a trained model has it.
    """

    train_file: str | None = setting(
        None, "Words and tags to train on; files separated by commas, or a glob.", heading="Your files"
    )
    dev_file: str | None = setting(None, "Words and tags to evaluate on (or several files).")
    test_file: str | None = setting(None, "One file to tag; tags, if it has any, are scored.")
    test_has_tags: bool = setting(True, "Whether --test_file has a tag column. A file with a single column has none.")
    encoding: str = encoding_setting("your files")
    column_separator: str = setting(
        "auto",
        "The column separator. space: any run of spaces and tabs. auto: tab if the first word's line has one.",
        choices=("auto", "tab", "space"),
    )
    word_column: int = setting(0, "Column of the word, from 0; -1 is the last one.")
    tag_column: int = setting(-1, "Column of the tag, from 0; -1 is the last one.")
    tag_scheme: str = setting(
        "iob2",
        "How tags mark entities. iob2: B- begins each, I- continues it (most datasets). iob1: B- only between two "
        "adjacent ones (CoNLL-2003 as published). bioes, bilou: ends and single words are marked, too. plain: tags "
        "that mark no entities, such as parts of speech; accuracy is measured.",
        choices=("iob2", "iob1", "bioes", "bilou", "plain"),
    )
    repair_tags: bool = setting(
        False, "Read tags that violate --tag_scheme like the program conlleval; by default an error."
    )
    comment_prefix: str = setting(
        "", "Lines with this prefix are not words, e.g. '# ' in CoNLL-U. Beware of hashtags in tweets."
    )
    doc_stride: int | None = setting(
        None,
        "Tokens from the start of one window of a long sentence or document to the next. If unset, half a window.",
        heading="Windows",
        least=1,
    )
    document_context: bool | None = setting(
        False,
        "Encode a sentence with its neighbours in the document (-DOCSTART- lines), as in the paper; use it with a "
        "large --max_seq_length. If unset, as the model was trained, or else false.",
        unset=True,
    )
    metric: str = setting(
        "entities",
        "How tags are scored. entities: precision, recall and F1 of whole entities, as conlleval. klue: also the "
        "scores of KLUE-NER, for files with a character a line: mean F1 over types of entities, which chooses the best "
        "model, and over tags of characters.",
        heading="Evaluation",
        choices=("entities", "klue"),
    )
    character_tokens: bool = setting(
        False,
        "In training on files with a character a line and spaces among them (KLUE-NER), each character is a token of "
        "its own, for models of characters. If false, the texts are cut into the model's pieces, each of which has the "
        "tag of its first character, and characters get the tags of their pieces.",
        heading="Windows",
    )
    class_weights: str | None = class_weights_setting("tagged words")

    @property
    def layout(self) -> data.Layout:
        """How a file is to be read."""
        return data.Layout(
            self.column_separator, self.word_column, self.tag_column, self.tag_scheme, self.comment_prefix,
            self.repair_tags, self.encoding,
        )  # fmt: skip

    def tagging(self, run: FineTuningSettings, newest: str | None) -> TaggingSettings:
        """The settings that a run's tagger has.

        Args:
          newest: checkpoint in --output_dir, if any.

        Raises:
          ValueError: the file beside the weights is damaged, or a setting contradicts it; names it.
        """
        source = newest or run.init_checkpoint
        with naming_flag("--output_dir" if newest else "--init_checkpoint"):
            stored = TaggingSettings.read(directory_of(source)) if source else None
        return choose_tagging(self, stored, source, bool(newest) or not run.do_train)

    def check(self, run: FineTuningSettings) -> HeadConfig:
        """Refuses contradictions, missing files, and files that lack a column.

        Returns:
          The head of the run's models; its labels only where a new one is trained and all training data is read.

        Raises:
          ValueError, FileNotFoundError: names flag, or file and line.
        """
        run.check_files(train_file=self.train_file, dev_file=self.dev_file, test_file=self.test_file)
        check_class_weights(self.class_weights, run.do_train)
        run.check_dev_set(run.do_eval, ": give --do_eval")
        if self.metric == "klue" and self.tag_scheme == "plain":
            raise ValueError("--metric=klue scores entities: --tag_scheme=plain has none.")
        newest = None if is_remote(run.output_dir) else latest_checkpoint(run.output_dir)
        if not (is_remote(run.output_dir) or is_remote(run.init_checkpoint or "")):
            self.tagging(run, newest)
        stored = stored_head(run, (TASKS["ner"].output_layer,))
        known = None  # the tags of the training set, or types of entities, if it is read to its end
        for needed, name in ((run.do_train, "train"), (run.do_eval, "dev"), (run.do_predict, "test")):
            if needed:
                flag, named = f"--{name}_file", getattr(self, f"{name}_file")
                files = check_input_files(named, flag)
                if name == "test" and len(files) > 1:
                    raise ValueError(f"--test_file={named} is {len(files)} files; give one.")
                with naming_flag(flag), without_logging():
                    read = [
                        data.check_beginning(path, self.layout, name != "test" or self.test_has_tags) for path in files
                    ]
                    for path, (sentences, _) in zip(files, read, strict=True) if name != "test" else ():
                        data.check_tags(path, sentences)
                    sentences = [sentence for sentences, _ in read for sentence in sentences]
                    found = data.kinds_of(sentences, self.tag_scheme)
                    are_all = not is_remote(named) and all(are_all for _, are_all in read)
                    if name == "train" and are_all:
                        data.check_several_tags(sentences)
                        known = found
                if self.metric == "klue" and name != "train" and found:
                    data.check_characters(flag, sentences)
                if stored and stored.head.architecture in (None, TASKS["ner"].architecture):
                    _check_known(
                        stored, flag, data.kinds_of(sentences, "plain") if run.do_train else found, run, are_all
                    )
                unknown = [] if known is None else [place for kind, place in found.items() if kind not in known]
                if unknown and not _knows_tags(run.init_checkpoint):
                    raise data.unknown_tags(flag, unknown)
        labels = None
        if known is not None and not _knows_tags(run.init_checkpoint):
            scheme = learned_scheme(self.tag_scheme)
            labels = sorted(known) if scheme == "plain" else tag_set(scheme, known)
            check_labels_of(self.class_weights, labels)
        return HeadConfig(TASKS["ner"].architecture, None if newest else labels)


def _check_known(
    stored: StartingHead, flag: str, found: Mapping[str, str], run: FineTuningSettings, are_all: bool
) -> None:
    """Refuses tags, or types of entities, of a file's beginning that a model can't learn, or of which it knows none.

    Args:
      stored: its output layer. found: see `kinds_of`; with --do_train of tags. are_all: whether there are no others.

    Raises:
      ValueError: names the model, and flag, file and line of the tags.
    """
    if stored.labels is None:
        if run.do_train:
            return  # its outputs are taken by position
        raise data.no_tags(stored.source)
    labels = standard_tags(stored.labels)
    known = spelled_as(labels if run.do_train else sorted({*labels, *types_of(labels)}), sorted(found))
    unknown = [place for kind, place in found.items() if kind not in known]
    shared = [kind for kind in found if kind in known and kind != OUTSIDE]
    if unknown and (run.do_train or (are_all and not shared)):
        raise stored.does_not_know("tags", flag, unknown, run.do_train)


def _knows_tags(path: str | None) -> bool:
    """Whether weights may have an output layer of tags, which a run then keeps; True where that is not known."""
    return bool(path) and (is_remote(path) or bool(names_in(read_head(directory_of(path)).labels)))
