import importlib
import sys

# name -> (module, description in help(bert_tf)), in the order in which a user needs them.
_PUBLIC = {
    "download": ("system.released_models", "The folder of a released model, by its name"),
    "FullTokenizer": ("text.wordpiece", "Text to word pieces and ids; called on texts, it returns a model's inputs"),
    "read_tokenizer": ("store.open", "The tokenizer of a model's directory, of its family's kind"),
    "BasicTokenizer": ("text.wordpiece", "Text to words, punctuation marks and Chinese characters"),
    "WordpieceTokenizer": ("text.wordpiece", "Words to the longest pieces of a vocabulary"),
    "BertConfig": ("families.config", "Sizes and rates of a model, as in bert_config.json"),
    "BertModel": ("models.task_models", "The encoder: an output for every token, and a pooled one"),
    "BertForSequenceClassification": (
        "models.task_models",
        "Classes, several labels or a number for each text or pair",
    ),
    "BertClassifier": ("models.task_models", "Another name for BertForSequenceClassification"),
    "BertForTokenClassification": ("models.task_models", "A class for every token, e.g. for named entities"),
    "BertForQuestionAnswering": ("models.task_models", "Where in a context the answer to a question begins and ends"),
    "BertForMultipleChoice": ("models.task_models", "Which of several choices is correct"),
    "BertForSimilarity": ("models.similarity", "Vectors of texts, trained so that those of like texts are near"),
    "BertForMaskedLM": ("models.task_models", "The words hidden by [MASK]"),
    "ElectraDiscriminator": ("models.electra", "Which words of a text a generator replaced"),
    "BertForNextSentencePrediction": ("models.task_models", "Whether a text follows another"),
    "BertForPreTraining": ("models.task_models", "Both pre-training objectives"),
    "BertPretrainingModel": ("models.task_models", "Another name for BertForPreTraining"),
    "as_dataset": ("tasks.classification.data", "Texts and labels of a table as a dataset for model.fit"),
    "load_weights": ("models.initialize", "Loads weights of any format into a model"),
    "PartialLoadWarning": ("models.initialize", "Warns of a model's variables that its weights lacked"),
    "load_lora": ("models.lora_file", "Adds what LoRA has trained to a model with the weights it started from"),
    "create_optimizer": ("training.optimization", "The original's optimizer or LAMB, with warm-up and linear decay"),
    "AdamWeightDecay": ("training.optimization", "The original's Adam: decoupled weight decay, no bias correction"),
    "Lamb": ("training.optimization", "LAMB, for batches of thousands of examples"),
    "WarmupLinearDecay": ("training.optimization", "The original's learning rate: linear warm-up, then linear decay"),
    "plot_training_log": ("training.plots", "The training curves from a run's log"),
    "Predictor": ("serving.predictor", "Strings to labels and probabilities, with a fine-tuned classifier"),
    "QuestionAnswerer": ("serving.question_answerer", "Answers to questions about texts of any length"),
    "Tagger": ("serving.tagger", "Named entities and word tags in texts of any length"),
    "ChoicePredictor": ("serving.question_answerer", "Which of several choices fits a context best"),
    "Embedder": ("serving.embedder", "One vector for each text: the nearer, the more alike"),
    "TextIndex": ("serving.text_index", "Texts with their vectors, in which Embedder finds those nearest to a query"),
    "fill_mask": ("serving.fill_mask", "The likeliest words for each [MASK]"),
    "LinearHead": ("models.heads", "A linear output layer with the original's names"),
    "MaskedLanguageModelHead": ("models.heads", "The output layer over the vocabulary"),
    "ClassificationObjective": ("models.objectives", "Loss and accuracy of one class for each example"),
    "MultiLabelObjective": ("models.objectives", "Loss of labels that do not exclude each other"),
    "RegressionObjective": ("models.objectives", "Squared error of a number for each example"),
    "TokenClassificationObjective": ("models.objectives", "Loss and accuracy of a class for every token"),
    "SpanObjective": ("models.objectives", "Loss of the first and last token of an answer"),
    "MultipleChoiceObjective": ("models.objectives", "Loss and accuracy of a choice"),
    "MaskedLanguageModelObjective": ("models.objectives", "Loss and accuracy of masked words"),
    "NextSentenceObjective": ("models.objectives", "Loss and accuracy of next sentence prediction"),
    "PretrainingObjective": ("models.objectives", "Both pre-training objectives together"),
}

_SUBMODULES = {"checkpoints": "training.checkpoints", "records": "data.records"}

__doc__ = """BERT as Google released it, on TensorFlow 2 and Keras 3.

Modules are loaded on first use, so that `import bert_tf` is instant and a program that only tokenizes never loads
TensorFlow. help(bert_tf.NAME) says more about each:

""" + "".join(f"  {name.ljust(max(map(len, _PUBLIC)))}  {line}\n" for name, (_, line) in _PUBLIC.items())

# What takes the place of names of transformers, besides those that `_instead_of` knows by their parts.
_INSTEAD = {
    "AutoConfig": "BertConfig",
    "DataCollatorWithPadding": "as_dataset",
    "TFElectraForPreTraining": "ElectraDiscriminator",
    "Trainer": "run_classifier.py and the other scripts",
    "TrainingArguments": "the flags of run_classifier.py and the other scripts",
    "pipeline": "Predictor, QuestionAnswerer, Tagger, fill_mask or Embedder",
}

__all__ = list(_PUBLIC)
__version__ = "1.0.0rc1"


def _instead_of(name: str) -> str | None:
    """The replacement of a name of transformers, see docs/from-transformers.md; None: there is none."""
    if name.endswith(("Tokenizer", "TokenizerFast")):
        return "read_tokenizer(path), or of a vocabulary alone FullTokenizer(vocab_file)"
    if name not in _INSTEAD and name.startswith(
        ("Auto", "TFAuto", "TFBert", "TFElectra", "TFAlbert", "TFRoberta", "TFDistilBert")
    ):
        task = name.partition("For")[2]
        here = f"BertFor{task}" if task else "BertModel"
        return here if here in _PUBLIC else None
    return _INSTEAD.get(name)


def __getattr__(name: str):
    if name in _SUBMODULES:
        return importlib.import_module(f"bert_tf.{_SUBMODULES[name]}")
    if name not in _PUBLIC:
        from bert_tf.system import removed

        here = _instead_of(name)
        instead = f"use {here}, see docs/from-transformers.md" if here else removed.NAMES.get(name)
        if instead:
            # Of an AttributeError, `from bert_tf import ...` would not show the message.
            is_import = sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap"
            kind = ImportError if is_import else AttributeError
            raise kind(f"bert_tf has no {name}: {instead}")
        near = importlib.import_module("difflib").get_close_matches(name, _PUBLIC, 1, 0.8)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}{meant}")
    import bert_tf.families  # noqa: F401  # whose tokenizers a directory may name

    value = getattr(importlib.import_module(f"bert_tf.{_PUBLIC[name][0]}"), name)
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
