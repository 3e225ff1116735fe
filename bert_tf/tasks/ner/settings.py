"""The settings of run_ner.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import dataclasses

from bert_tf.system.checks import check_input_files
from bert_tf.system.declare import changeable_setting, setting
from bert_tf.system.text_files import encoding_setting
from bert_tf.tasks.classification.label_checks import class_weights_setting
from bert_tf.tasks.ner.data import Layout
from bert_tf.training.settings import FineTuningSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class NerSettings:
    """Files of words and tags, and which model learns them. document_context: None: as a trained model has it."""

    train_file: str | None = setting(
        None, "Words and tags to train on; files separated by commas, or a glob.", heading="Your files"
    )
    dev_file: str | None = setting(None, "Words and tags to evaluate on (or several files).")
    test_file: str | None = changeable_setting(None, "One file to tag; tags, if it has any, are scored.")
    test_has_tags: bool = changeable_setting(
        True, "Whether --test_file has a tag column. A file with a single column has none."
    )
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
    metric: str = changeable_setting(
        "entities",
        "How tags are scored. entities: precision, recall and F1 of whole entities, as conlleval. klue: also the "
        "scores of KLUE-NER, for files with a character a line: mean F1 over types of entities, which chooses the best "
        "model, and over tags of characters.",
        heading="Evaluation",
        choices=("entities", "klue"),
    )
    character_tokens: bool = setting(
        False,
        "Of files with a character a line and spaces among them (KLUE-NER), each character is a token of its own, for "
        "models of characters. If false, the texts are cut into the model's pieces, each of which has the tag of its "
        "first character, and characters get the tags of their pieces. Models of run_ner.py stay as they were trained.",
        heading="Windows",
    )
    class_weights: str | None = class_weights_setting("tagged words")

    @property
    def layout(self) -> Layout:
        return Layout(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Layout)})

    def check(self, run: FineTuningSettings) -> None:
        names = ("train_file", "dev_file", "test_file")
        run.check_files(check_input_files, **{name: getattr(self, name) for name in names})
        run.check_dev_set(run.do_eval, ": give --do_eval")
        if self.metric == "klue" and self.tag_scheme == "plain":
            raise ValueError("--metric=klue scores entities: --tag_scheme=plain has none.")
