import importlib

# name -> where it is, and what help(bert_tf) says of it. In the order in which one meets them.
_PUBLIC = {
    "download": ("weights.released_models", "The folder of one of Google's released BERTs, by its name"),
    "FullTokenizer": ("text.wordpiece", "Text to word pieces and ids; called on texts it gives a model's inputs"),
    "BasicTokenizer": ("text.wordpiece", "Text to words, punctuation marks and Chinese characters"),
    "WordpieceTokenizer": ("text.wordpiece", "Words to the longest pieces of a vocabulary"),
    "BertConfig": ("models.config", "Sizes and rates of a model, as bert_config.json holds them"),
    "BertModel": ("models.task_models", "The encoder: an output for every token, and a pooled one"),
    "BertForSequenceClassification": (
        "models.task_models",
        "Classes, several labels or a number for each text or pair",
    ),
    "BertClassifier": ("models.task_models", "Another name of BertForSequenceClassification"),
    "BertForTokenClassification": ("models.task_models", "A class for every token, as for named entities"),
    "BertForQuestionAnswering": ("models.task_models", "Where in a context the answer to a question begins and ends"),
    "BertForMultipleChoice": ("models.task_models", "Which of several choices is right"),
    "BertForMaskedLM": ("models.task_models", "The words behind [MASK]"),
    "BertForNextSentencePrediction": ("models.task_models", "Whether a text follows another"),
    "BertForPreTraining": ("models.task_models", "Both objectives of pre-training"),
    "BertPretrainingModel": ("models.task_models", "Another name of BertForPreTraining"),
    "as_dataset": ("tasks.classification.dataset", "Texts and labels of a table as a data set for model.fit"),
    "load_weights": ("models.initialize", "Loads weights of any format into a model"),
    "create_optimizer": ("training.optimization", "The original's optimizer or LAMB, with warm-up and linear decay"),
    "AdamWeightDecay": ("training.optimization", "The original's Adam: decoupled weight decay, no bias correction"),
    "Lamb": ("training.optimization", "LAMB, for batches of thousands of examples"),
    "WarmupLinearDecay": ("training.optimization", "The original's learning rate: linear warm-up, then linear decay"),
    "plot_training_log": ("training.plots", "The curves of a run's log"),
    "Predictor": ("serving.predictor", "Strings to labels and probabilities, with a fine-tuned classifier"),
    "QuestionAnswerer": ("serving.question_answerer", "Answers to questions on texts of any length"),
    "Tagger": ("serving.tagger", "Named entities and tags of words in texts of any length"),
    "ChoicePredictor": ("serving.choice_predictor", "Which of several choices goes with a context"),
    "fill_mask": ("serving.fill_mask", "The likeliest words in the places of [MASK]"),
    "LinearHead": ("models.heads", "A linear output layer with the original's names"),
    "MaskedLanguageModelHead": ("models.heads", "The output layer over the vocabulary"),
    "ClassificationObjective": ("models.objectives", "Loss and accuracy of one class for each example"),
    "MultiLabelObjective": ("models.objectives", "Loss of labels of which any number may hold"),
    "RegressionObjective": ("models.objectives", "Squared error of a number for each example"),
    "TokenClassificationObjective": ("models.objectives", "Loss and accuracy of a class for every token"),
    "SpanObjective": ("models.objectives", "Loss of the first and last token of an answer"),
    "MultipleChoiceObjective": ("models.objectives", "Loss and accuracy of a choice"),
    "MaskedLanguageModelObjective": ("models.objectives", "Loss and accuracy of masked words"),
    "NextSentenceObjective": ("models.objectives", "Loss and accuracy of the next sentence"),
    "PretrainingObjective": ("models.objectives", "Both of pre-training together"),
}

_SUBMODULES = {"checkpoints": "training.checkpoints", "records": "data.records"}

__doc__ = """BERT as Google released it, on TensorFlow 2 and Keras 3.

Modules are loaded on first use, so that `import bert_tf` is instant and a program that only tokenizes never loads
TensorFlow. help(bert_tf.NAME) says more of each:

""" + "".join(f"  {name.ljust(max(map(len, _PUBLIC)))}  {line}\n" for name, (_, line) in _PUBLIC.items())

__all__ = list(_PUBLIC)
__version__ = "0.1.0"


def __getattr__(name: str):
    if name in _SUBMODULES:
        return importlib.import_module(f"bert_tf.{_SUBMODULES[name]}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"bert_tf.{_PUBLIC[name][0]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
