"""BERT as Google released it, on TensorFlow 2 and Keras 3.

The public names for notebooks. Modules are loaded on first use, so that `import bert_tf` is instant and a program that
only tokenizes never loads TensorFlow.
"""

import importlib

_MODULES = {
    "AdamWeightDecay": "optimization",
    "BasicTokenizer": "tokenization",
    "BertClassifier": "task_models",
    "BertConfig": "config",
    "BertForMaskedLM": "task_models",
    "BertForMultipleChoice": "task_models",
    "BertForNextSentencePrediction": "task_models",
    "BertForPreTraining": "heads",
    "BertForQuestionAnswering": "task_models",
    "BertForSequenceClassification": "task_models",
    "BertForTokenClassification": "task_models",
    "BertModel": "modeling",
    "BertPretrainingModel": "heads",
    "ClassificationObjective": "objectives",
    "FullTokenizer": "tokenization",
    "Lamb": "optimization",
    "LinearHead": "heads",
    "MaskedLanguageModelHead": "heads",
    "MaskedLanguageModelObjective": "objectives",
    "MultiLabelObjective": "objectives",
    "MultipleChoiceObjective": "objectives",
    "NextSentenceObjective": "objectives",
    "Predictor": "predictor",
    "PretrainingObjective": "heads",
    "QuestionAnswerer": "question_answerer",
    "RegressionObjective": "objectives",
    "SpanObjective": "objectives",
    "TokenClassificationObjective": "objectives",
    "WarmupLinearDecay": "optimization",
    "WordpieceTokenizer": "tokenization",
    "create_optimizer": "optimization",
    "fill_mask": "masked_lm",
    "load_weights": "checkpoints",
    "plot_training_log": "plots",
}

_SUBMODULES = ("checkpoints", "records", "tokenization", "training")

__all__ = list(_MODULES)
__version__ = "0.1.0"


def __getattr__(name: str):
    if name in _SUBMODULES:
        return importlib.import_module(f"bert_tf.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"bert_tf.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
