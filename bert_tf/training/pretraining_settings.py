"""Settings of run_pretraining.py, and what follows from them for the model."""

import dataclasses
import os

from bert_tf.families import config_of_size
from bert_tf.families.config import BertConfig
from bert_tf.families.recipe import OptimizerSettings
from bert_tf.pretraining.record_settings import InstanceSettings, check_mask_rates
from bert_tf.store.description import check_weights
from bert_tf.system import checks
from bert_tf.system.declare import (
    ORIGINAL,
    REQUIRED,
    changeable_setting,
    check_values,
    inherited_setting,
    non_default_settings,
    setting,
    setting_group,
)
from bert_tf.system.hub import is_name
from bert_tf.training.settings import FineTuningSettings, ModelSettings, TrainingSettings
from bert_tf.training.teacher import LanguageTeacherSettings

WARMUP_STEPS = 10000  # of a BERT
MASKS, ELECTRA = "Masks of unmasked records", "With --objective=electra"  # headings of --help


@dataclasses.dataclass(frozen=True)
class PretrainingSettings(LanguageTeacherSettings, TrainingSettings):
    """What is trained, on which data, for how long; the flags of run_pretraining.py.

    nsp, mask_rule: None: as in the model's family. learning_rate: None: that of the family's recipe.
    """

    input_file: str = setting(
        REQUIRED, "TFRecord files of create_pretraining_data.py: files or globs, separated by commas.", heading=ORIGINAL
    )
    output_dir: str = inherited_setting(
        FineTuningSettings,
        "output_dir",
        help="Directory for checkpoints, logs and eval_results.txt. A run in it is resumed.",
    )
    bert_config_file: str | None = inherited_setting(
        ModelSettings,
        "bert_config_file",
        help="The model's configuration, whose name says the family: bert_config.json, albert_config.json and so on. "
        "If unset, the one next to --init_checkpoint.",
    )
    init_checkpoint: str | None = inherited_setting(
        ModelSettings,
        "init_checkpoint",
        help="Weights to start from: a checkpoint, a Hugging Face directory or name, or a SavedModel of TensorFlow "
        "Hub. Ignored once output_dir has a checkpoint.",
        check=None,  # it needs none where a run goes on
    )
    do_train: bool = changeable_setting(False, "Train until --num_train_steps.")
    do_eval: bool = changeable_setting(False, "Evaluate at the end, and write eval_results.txt.")
    max_seq_length: int = setting(
        128, "Tokens per sequence. Must match the data; for unmasked records, at least the data's.", on_card=True
    )
    max_predictions_per_seq: int | None = setting(
        20,
        "Masked positions per sequence. Must match the data; for unmasked records any number. If unset, 20; with "
        "--mask_smoothing twice the mean; for ELECTRA and RoBERTa as many as their authors had, about max_seq_length * "
        "masked_lm_prob.",
        unset=True,
        least=1,
    )
    eval_batch_size: int = changeable_setting(8, "Examples per batch in evaluation, over all devices.", least=1)
    learning_rate: float | None = inherited_setting(
        OptimizerSettings,
        "learning_rate",
        help="Peak learning rate. BERT: 1e-4 from random weights (the paper), 2e-5 from released ones. If unset, 5e-5 "
        "for BERT; for other families their authors', which is logged and meant for their large batches.",
    )
    num_train_steps: int = setting(
        100000, "Total steps, over which the learning rate decays to 0.", least=1, on_card=True
    )
    num_warmup_steps: int | None = setting(
        WARMUP_STEPS,
        "Steps over which the learning rate rises from 0 (not a share). If unset, 10000 for BERT, and for other "
        "families their authors' share of the steps, which is logged.",
        unset=True,
        least=0,
    )
    max_eval_steps: int = changeable_setting(100, "Maximum batches per evaluation.", least=1)
    eval_input_file: str | None = changeable_setting(
        None,
        "Held-out records: the first --max_eval_steps batches, each record once. If unset, --input_file is repeated to "
        "exactly --max_eval_steps batches, as in the original.",
        heading="Data and schedule",
    )
    vocab_file: str | None = inherited_setting(
        ModelSettings,
        "vocab_file",
        help="The vocabulary that the records were made with; it is copied to output_dir. Unmasked records and "
        "--bert_size need it. If unset, the one next to --init_checkpoint, else the one named in the summary of the "
        "records.",
    )
    lr_decay_power: float = setting(
        1.0,
        "The learning rate decays as the share of steps left to this power; 1: linearly. Warm-up is always linear.",
        above=0,
    )
    stop_at_step: int | None = changeable_setting(
        None,
        "End at this step, with the learning rate of a run of --num_train_steps; a later command on the same "
        "output_dir goes on, e.g. with records of 512 tokens.",
        least=1,
    )
    shuffle_window: int = setting(
        20000,
        "Records that are shuffled together, in memory; blocks of 1,024 are shuffled over the whole data.",
        least=1,
    )
    verify_records: bool = setting(False, "Verify the checksums of all records at the start, not when they are used.")
    bert_size: str | None = setting(
        None,
        "A named size instead of --bert_config_file: tiny, mini, small, medium, base, large, any of the 24 miniatures "
        "as L-4_H-512, or L-3_H-768, L-6_H-768_A-3, L-12_H-1024, L-24_H-1024; albert_base_v2 (large, xlarge, xxlarge; "
        "v1); distilbert_base; electra_small (base, large); roberta_base (large), and so on. Its vocabulary "
        "is --vocab_file, or else as large as that of the released models (BERT: 30,522 tokens).",
        heading="What is learned",
        check=lambda size, _: config_of_size(size),
    )
    objective: str = setting(
        "mlm",
        "mlm: predict masked tokens. ltr: predict each token from those before it; the model keeps causal attention in "
        "fine-tuning (Table 5 of the paper). electra: a small generator predicts masked tokens, and the model finds "
        "which tokens of its text are not the original ones; with unmasked records.",
        choices=("mlm", "ltr", "electra"),
    )
    nsp: bool | None = setting(
        True,
        "Predict whether the second segment follows the first; for an ALBERT, whether the two are swapped, as the "
        "records say. false: predict only tokens, with records of create_pretraining_data.py --nsp=false, or with "
        "pairs (Table 5). If unset, true; false for families without a pooler, such as RoBERTa.",
        unset=True,
    )
    masked_lm_prob: float = inherited_setting(
        InstanceSettings,
        "masked_lm_prob",
        help="Share of tokens to predict. For masked records, create_pretraining_data.py sets it.",
        heading=MASKS,
    )
    do_whole_word_mask: bool = inherited_setting(
        InstanceSettings,
        "do_whole_word_mask",
        help="Mask all pieces of a word or none. Masked records are as create_pretraining_data.py made them.",
    )
    mask_rate: float = inherited_setting(InstanceSettings, "mask_rate")
    random_rate: float = inherited_setting(InstanceSettings, "random_rate")
    keep_rate: float = inherited_setting(InstanceSettings, "keep_rate")
    mask_smoothing: float = setting(
        0.0,
        "Mask rare tokens more often, with odds of count ** -mask_smoothing, over the whole batch; DistilBERT: 0.7.",
        least=0,
        most=1,
    )
    mask_rule: str | None = setting(
        None,
        "How many tokens of a row are predicted, and which may be. bert: their number rounded, at least one, never "
        "[CLS] and [SEP]. roberta: rounded up or down at random, any token, as in fairseq. If unset, roberta for a "
        "RoBERTa, bert for all others. --objective=electra has a rule of its own.",
        choices=("bert", "roberta"),
    )
    generator_size: float | None = setting(
        0.25,
        "Width of the generator, as a share of the model's; it has as many layers. If unset, that of the generator in "
        "--init_checkpoint, or else 0.25.",
        heading=ELECTRA,
        unset=True,
        above=0,
        most=1,
    )
    generator_config_file: str | None = changeable_setting(
        None,
        "The generator's configuration (electra_config.json), instead of --generator_size.",
        check=checks.check_file,
    )
    untied_generator_embeddings: bool = setting(False, "Give the generator its own embeddings, of its own width.")
    gen_weight: float = setting(1.0, "Factor of the generator's loss.", least=0)
    disc_weight: float = setting(50.0, "Factor of the discriminator's loss.", least=0)
    disallow_correct: bool = setting(False, "The generator never draws the original token.")
    generator_temperature: float = setting(1.0, "The generator's logits are divided by it before it draws.", above=0)

    def check(self) -> None:
        """Raises if settings contradict each other, or files and folders are not there; a model may be a hub name."""
        check_values(self)
        self.check_devices(self.use_xla, self.do_train)
        if not self.do_train and not self.do_eval:
            raise ValueError("Nothing to do: give --do_train, --do_eval or both.")
        stop, steps = self.stop_at_step or 0, self.num_train_steps
        if stop > steps:
            raise ValueError(f"--stop_at_step={stop} must be at most --num_train_steps={steps}.")
        for pair, both in _APART.items():
            if all(getattr(self, name) for name in pair):
                named = " and ".join(f"--{name}={getattr(self, name)}" for name in pair)
                raise ValueError(f"{named} both say {both}: give one.")
        for name in non_default_settings(self, UNUSED[self.objective]):
            raise ValueError(f"--{name} is not for --objective={self.objective}.")
        if self.nsp and (self.teacher or self.objective == "electra"):
            raise ValueError("--nsp is not for --objective=electra, nor for a student.")
        self.check_teacher()
        if self.teacher and self.objective != "mlm":
            raise ValueError(f"--teacher is for --objective=mlm, not for --objective={self.objective}.")
        check_mask_rates(self.mask_rate, self.random_rate, self.keep_rate)
        may_resume = os.path.isdir(self.output_dir) and os.listdir(self.output_dir)  # without the weights
        if self.init_checkpoint and not (may_resume or is_name(self.init_checkpoint)):
            check_weights(self.init_checkpoint, "--init_checkpoint")
        for name in non_default_settings(self, ("input_file", "eval_input_file")):
            checks.check_not_empty(checks.check_input_files(getattr(self, name), f"--{name}"), f"--{name}")


# Flags that say how unmasked records are masked while training.
MASK_FLAGS = setting_group(PretrainingSettings, MASKS)
_ELECTRA_FLAGS = setting_group(PretrainingSettings, ELECTRA)
# By objective. ELECTRA's way of masking leaves a choice of the share alone.
UNUSED = {"mlm": _ELECTRA_FLAGS, "ltr": (*MASK_FLAGS, *_ELECTRA_FLAGS), "electra": MASK_FLAGS[1:]}
# Pairs of settings of which one can be given, with what both say.
_APART = {
    ("bert_size", "bert_config_file"): "the model's size",
    ("generator_size", "generator_config_file"): "the generator's size",
    ("mask_rule", "mask_smoothing"): "which tokens are predicted",
}


def student_family(settings: PretrainingSettings, teacher: BertConfig) -> str:
    return settings.student_family or ("distilbert" if teacher.model_type == BertConfig.model_type else "same")
