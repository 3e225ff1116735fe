"""The families of models: a folder has all that is specific to one, and a name here adds it."""

import re
from collections.abc import Iterable, Mapping

from bert_tf.families import albert, bert, distilbert, electra, roberta, xlm_roberta
from bert_tf.families.config import BertConfig
from bert_tf.families.family import Family
from bert_tf.system.hub import MODEL_TYPES, check_model_type
from bert_tf.text import tokenizer_class_of
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import Casing, read_casing

FAMILIES = tuple(folder.FAMILY for folder in (bert, distilbert, roberta, electra, albert, xlm_roberta))
BERT = bert.FAMILY  # of models that don't say what they are
MODEL_TYPES[:] = sorted(family.model_type for family in FAMILIES)
Tokenizer.by_name.update((family.tokenizer_name, family.tokenizer_class) for family in FAMILIES)
Tokenizer.by_model_type.update((family.model_type, family.tokenizer_class) for family in FAMILIES)


def family_named(model_type: str, source: str = "config") -> Family:
    check_model_type(model_type, source)
    return next(family for family in FAMILIES if family.model_type == model_type)


def family_of(config: BertConfig) -> Family:
    return family_named(config.model_type)


def family_of_variables(names: Iterable[str]) -> Family:
    """The family whose scope the variable names have; BERT if they have none, as those of a head alone."""
    scopes = {name.split("/")[0] for name in names}
    return next((family for family in FAMILIES if family.model_type in scopes), BERT)


def is_encoder_variable(name: str) -> bool:
    """Whether a name in a checkpoint belongs to the encoder, not to a head or an optimizer."""
    return name.split("/")[0] in {family.model_type for family in FAMILIES}


def as_config(config: BertConfig | Mapping) -> BertConfig:
    """The argument `config` of a model, of any family, which may be what its `to_dict` returned."""
    if isinstance(config, BertConfig):
        return config
    family = family_named(config.get("model_type", BERT.model_type))
    return family.config_class.from_dict(config, allow_unknown=True)


def config_of_size(size: str, vocab_size: int | None = None) -> BertConfig:
    """The configuration of a named size of any family (--bert_size), of the family's class.

        config = config_of_size("albert_base_v2", vocab_size=30000)

    size: a name; of BERT, L-<layers>_H-<hidden size> may have its usual _A-<heads>.
    vocab_size: None: that of the family's released models.
    """
    hidden = re.search(r"_H-(\d+)", size)  # usually a head for 64 units of width
    name = size.removesuffix(f"_A-{int(hidden[1]) // 64}") if hidden else size
    kinds = [family.config_class for family in FAMILIES]
    for kind in kinds:
        if name in kind.sizes:
            return kind(vocab_size or kind.released_vocab_size, **kind.sizes[name])
    files = ", ".join(f"{kind.file_name} ({kind.title})" for kind in kinds)
    advice = f"For any other size, write a --bert_config_file, whose name says the family: {files}."
    raise ValueError(f"--bert_size={size} is not one of {', '.join(n for k in kinds for n in k.sizes)}. {advice}")


def tokenizer_of_model(vocab_file: str, config: BertConfig, casing: Casing | None = None) -> Tokenizer:
    """The tokenizer that a model of this configuration makes of a vocabulary file; casing: else that next to it."""
    family = family_of(config)
    kind = tokenizer_class_of(vocab_file, family.tokenizer_class)
    if not issubclass(kind, (family.tokenizer_class, *family.other_tokenizers)):
        needed = f"this model is {config.title}, which needs {family.tokenizer_class.vocab_kind}"
        raise ValueError(f"--vocab_file={vocab_file} is a vocabulary of {kind.vocab_kind}, but {needed}.")
    return kind.from_file(vocab_file, casing or read_casing(vocab_file))
