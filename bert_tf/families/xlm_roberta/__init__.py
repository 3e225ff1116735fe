"""XLM-RoBERTa (Conneau et al. 2020): RoBERTa's layers, SentencePiece of 100 languages."""

import dataclasses
from typing import ClassVar

from bert_tf.families import roberta
from bert_tf.families.config import arguments_of_size
from bert_tf.families.xlm_roberta.tokenizer import FairseqSentencePiece, XLMRobertaTokenizer


@dataclasses.dataclass(eq=False)
class XLMRobertaConfig(roberta.RobertaConfig):
    """Sizes and rates of an XLM-RoBERTa, whose arguments are those of a RoBERTa."""

    vocab_size: int = 250002

    model_type, title = "xlm-roberta", "XLM-RoBERTa"
    released_vocab_size = 250002
    sizes: ClassVar = {
        "xlm_roberta_base": arguments_of_size(12, 768),
        "xlm_roberta_large": arguments_of_size(24, 1024),
    }


FAMILY = dataclasses.replace(
    roberta.FAMILY,
    config_class=XLMRobertaConfig,
    tokenizer_class=FairseqSentencePiece,
    tokenizer_name="XLMRobertaTokenizer",
    other_tokenizers=(XLMRobertaTokenizer,),
    own_prefix="roberta",
)
