"""The settings of run_ner.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import dataclasses

from bert_tf.system.checks import check_input_files
from bert_tf.system.messages import named_by, unheard
from bert_tf.system.text_encodings import UTF_8
from bert_tf.tasks.ner.data import Layout, check_beginning, check_several_tags, check_tags
from bert_tf.training.class_weights import check_class_weights
from bert_tf.training.settings import FineTuningSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class NerSettings:
    """Files of words and tags, and which model learns them; the fields are the flags of these names.

    Attributes:
      document_context, features, lstm_size, lstm_layers: None: as a trained model has them, or else False, None (all of
        BERT is trained), 768 and 2.
    """

    train_file: str | None = None
    dev_file: str | None = None
    test_file: str | None = None
    test_has_tags: bool = True
    column_separator: str = "auto"
    word_column: int = 0
    tag_column: int = -1
    tag_scheme: str = "iob2"
    repair_tags: bool = False
    encoding: str = UTF_8
    class_weights: str | None = None
    comment_prefix: str = ""
    doc_stride: int | None = None
    document_context: bool | None = None
    features: str | None = None
    lstm_size: int | None = None
    lstm_layers: int | None = None
    metric: str = "entities"

    @property
    def layout(self) -> Layout:
        """How a file is to be read."""
        return Layout(
            self.column_separator, self.word_column, self.tag_column, self.tag_scheme, self.comment_prefix,
            self.repair_tags, self.encoding,
        )  # fmt: skip

    def check(self, run: FineTuningSettings) -> None:
        """Refuses contradictions, missing files, and files that lack a column.

        Raises:
          ValueError, FileNotFoundError: names flag, or file and line.
        """
        run.check_files(train_file=self.train_file, dev_file=self.dev_file, test_file=self.test_file)
        check_class_weights(self.class_weights, run.do_train)
        run.check_dev_set(run.do_eval, ": give --do_eval")
        for name in ("lstm_size", "lstm_layers"):
            if run.do_train and getattr(self, name) is not None and not self.features:
                raise ValueError(f"--{name} is for the feature-based way: give --features.")
        if self.metric == "klue" and self.tag_scheme == "plain":
            raise ValueError("--metric=klue scores entities: --tag_scheme=plain has none.")
        for needed, name in ((run.do_train, "train"), (run.do_eval, "dev"), (run.do_predict, "test")):
            if needed:
                flag = f"--{name}_file"
                files = check_input_files(getattr(self, f"{name}_file"), flag)
                with named_by(flag), unheard():
                    read = [check_beginning(path, self.layout, name != "test" or self.test_has_tags) for path in files]
                    for path, (sentences, _) in zip(files, read, strict=True) if name != "test" else ():
                        check_tags(path, sentences)
                    if name == "train" and all(are_all for _, are_all in read):
                        check_several_tags(sentence for sentences, _ in read for sentence in sentences)
