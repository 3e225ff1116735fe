"""What a pre-training run trains of two models: ELECTRA's discriminator and generator, or a student and its teacher."""

import dataclasses
import posixpath
from collections.abc import Mapping

import keras
from absl import logging

from bert_tf.families import tokenizer_of_model
from bert_tf.families.config import BertConfig
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.models import encoder, initialize
from bert_tf.models.distillation import LanguageDistillation, TaughtLanguageModel, chosen_layers
from bert_tf.models.electra import ElectraPretrainer, ReplacedTokenEvaluation, ReplacedTokenPretraining
from bert_tf.models.task_models import BertForMaskedLM
from bert_tf.pretraining import mask_rules
from bert_tf.store import card, save, variable_names
from bert_tf.store.description import CardFacts, read_config, read_model_files
from bert_tf.store.open import open_model, open_weights
from bert_tf.store.tensor_files import Weights
from bert_tf.system.declare import value_of
from bert_tf.system.messages import naming_flag
from bert_tf.training.pretraining_settings import PretrainingSettings, student_family
from bert_tf.training.pretraining_tasks import PretrainingTask
from bert_tf.training.teacher import open_teacher

_OUTPUT_LAYER = "cls/predictions/output_bias"  # of a masked LM


class ElectraTask(PretrainingTask):
    """Replaced token detection; see `ElectraPretrainer`. The configuration is the discriminator's."""

    own_masks: Mapping[str, object] = {
        "mask_rule": "electra", "mask_rate": mask_rules.ELECTRA_MASK_RATE, "random_rate": 0.0,
        "keep_rate": 1 - mask_rules.ELECTRA_MASK_RATE,
    }  # fmt: skip

    @staticmethod
    def configure(settings: PretrainingSettings, config: BertConfig, config_name: str) -> None:
        if config.model_type != ElectraConfig.model_type:
            raise ValueError(
                f"--objective=electra is for ELECTRA, but {config_name} is that of {config.title}: give "
                "--bert_size=electra_small or another, or --bert_config_file with an electra_config.json."
            )

    @staticmethod
    def default_predictions(settings: PretrainingSettings, config: BertConfig) -> int:
        return int((settings.masked_lm_prob + 0.005) * settings.max_seq_length)  # as configure_pretraining.py of theirs

    def prepare(self) -> None:
        super().prepare()
        settings, start = self.settings, self.earlier.newest or self.settings.init_checkpoint
        if path := settings.generator_config_file:
            with naming_flag("--generator_config_file"):
                generator_config = read_config(path)
        elif settings.generator_size is None and start and "generator" in open_weights(start).parts:
            generator_config = open_model(start, part="generator").config
        else:
            generator_config = self.config.generator(value_of(settings, "generator_size"))
            if settings.untied_generator_embeddings:
                generator_config.embedding_size = generator_config.hidden_size
        self.earlier.check_model(generator_config, part="generator")
        self.generator_config = self.configs["generator"] = generator_config
        weights = settings.gen_weight, settings.disc_weight
        self.objective = ReplacedTokenPretraining(*weights)
        self.evaluation_objective = ReplacedTokenEvaluation(*weights)

    def create_model(self) -> ElectraPretrainer:
        settings = self.settings
        options = {name: getattr(settings, name) for name in ("untied_generator_embeddings", "disallow_correct")}
        options |= {"temperature": settings.generator_temperature, "dtype": settings.dtype_policy}
        return ElectraPretrainer(self.config, self.generator_config, **options, **dataclasses.asdict(self.objective))

    def flops_per_example(self) -> float:
        length = self.settings.max_seq_length
        return encoder.replaced_token_flops_per_example(self.config, self.generator_config, length, self.predictions)

    @property
    def recorded(self) -> dict[str, object]:
        return {**super().recorded, "generator_size": self.generator_config.hidden_size / self.config.hidden_size}

    def write_parts(self, facts: CardFacts) -> None:
        folder = self.settings.output_dir
        files = read_model_files(folder)
        configs = {"discriminator": self.config, "generator": self.generator_config}
        weights = variable_names.with_our_names(initialize.model_weights(self.model)).parts
        for part, config in configs.items():
            # A generator guesses words, as its own class does.
            usage = None if part == "generator" else facts.usage.replace(f"{card.PLACE}/discriminator", card.PLACE)
            note = "Its results are those of both models together."
            of_part = dataclasses.replace(facts, usage=usage, notes=(note,))
            part_files, target = dataclasses.replace(files, config=config, card=of_part), posixpath.join(folder, part)
            save.write_model(target, weights[part], part_files, format="bert_tf", overwrite=True)
            logging.info("Wrote the %s to %s.", part, target)

    def advice(self, folder: str) -> str:
        model = f"--init_checkpoint={folder}/discriminator"
        return f"  python run_classifier.py {model} --task_name=... --do_train --output_dir=..."


class DistillationTask(PretrainingTask):
    """Distillation; see `distillation.LanguageDistillation`. The configuration is the student's."""

    recipe = DistilBertConfig.pretraining_recipe  # whatever the student's family

    def prepare(self) -> None:
        super().prepare()
        files, settings = self.vocabulary, self.settings
        tokenizer = files and tokenizer_of_model(files.vocab_file, self.config, files.casing)
        is_open = self.opened and settings.init_checkpoint in (None, settings.teacher)
        teacher = self.opened if is_open else settings.teacher
        self.teacher = open_teacher(teacher, tokenizer, settings.max_seq_length, _OUTPUT_LAYER)
        if self.teacher.files.config.is_causal:
            raise ValueError("--teacher has causal attention: it does not score masked tokens.")
        self.configs["teacher"], self.model_class = self.teacher.files.config, BertForMaskedLM
        alphas = (settings.alpha_ce, settings.alpha_mlm, settings.alpha_cos, settings.alpha_mse)
        self.objective = LanguageDistillation(*alphas, settings.temperature, settings.restrict_ce_to_mask)

    def start(self, model: keras.Model) -> str | Weights | None:
        layers, transform = self.settings.layers, self.settings.vocab_transform
        if not layers:
            return super().start(model)
        return chosen_layers(self.teacher.files.weights, layers, self.config, transform=transform)

    def around(self, model: keras.Model) -> TaughtLanguageModel:
        teacher = BertForMaskedLM.from_pretrained(self.teacher.files, dtype=self.settings.dtype_policy, trained=True)
        return TaughtLanguageModel(model, teacher, self.objective)

    def flops_per_example(self) -> float:
        length = self.settings.max_seq_length
        compared = self.predictions if self.settings.restrict_ce_to_mask else length
        student, teacher = (
            encoder.pretraining_flops_per_example(config, length, compared, self.objective.reads_all)
            for config in (self.config, self.teacher.files.config)
        )
        return student + teacher / 3.0  # which is only computed forward

    @property
    def recorded(self) -> dict[str, object]:
        recorded = {**super().recorded, "teacher": self.settings.teacher, **self.teacher.recorded}
        if self.settings.layers:
            recorded["student_family"] = student_family(self.settings, self.teacher.files.config)
        return recorded
