"""The original's names: importable as they were, with its results; and docs/names.md, which lists all of them."""

import gzip
import importlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers.paths import GOLDEN, ROOT, lines_of
from helpers.small_data import SQUAD_SIZES

from bert_tf import modeling, optimization, run_classifier, run_squad

# Every public function and class of the original's files, and three others that people import.
NAMES = json.loads((GOLDEN / "names.json").read_text())
PAGE = (ROOT / "docs" / "names.md").read_text()


def rows_of(file: str) -> dict[str, str]:
    """The table of a file: the original's name -> what the page says of it."""
    section = PAGE.split(f"\n## {file}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \| (.*) \|$", section, re.MULTILINE)
    return {name: text for names, text in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("file", NAMES)
def test_the_page_has_every_name(file):
    assert sorted(rows_of(file)) == sorted(NAMES[file])


def test_what_the_page_names_can_be_imported():
    paths = set(re.findall(r"`(bert_tf(?:\.\w+)+)", PAGE))
    for file in NAMES:
        rows = rows_of(file).items()
        paths |= {f"bert_tf.{file.removesuffix('.py')}.{name}" for name, text in rows if text.startswith("the same")}
    assert len(paths) > 60
    for path in sorted(paths):
        parts = path.split(".")
        for length in range(len(parts), 0, -1):
            try:
                value = importlib.import_module(".".join(parts[:length]))
                break
            except ModuleNotFoundError as error:
                assert error.name and path.startswith(error.name), path
        for name in parts[length:]:
            value = getattr(value, name)


@pytest.mark.parametrize(
    "file", ["modeling.py", "optimization.py", "tokenization.py", "run_classifier.py", "run_squad.py"]
)
def test_a_name_that_is_there_is_said_to_be(file):
    """ "The same" in the row of `gelu`, if and only if bert_tf/modeling.py has it."""
    module = file.removesuffix(".py")
    here = importlib.import_module(f"bert_tf.{module}").__all__
    for name, text in rows_of(file).items():
        assert text.startswith("the same") == (name in here), name


@pytest.mark.parametrize("script", ["run_classifier", "run_squad"])
def test_the_scripts_have_the_names_too(script):
    code = f"""
import sys, {script} as script
print("bert_tf.{script}" in sys.modules)
from bert_tf import {script} as names
print(all(getattr(script, name) is getattr(names, name) for name in names.__all__), hasattr(script, "none"))
print([module for module in ("tensorflow", "keras") if module in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.splitlines() == ["False", "True False", "[]"]


def test_activations():
    x = np.array([-3.0, 0.0, 1.0], np.float32)
    np.testing.assert_allclose(modeling.gelu(x), [-0.00363739, 0.0, 0.84119199], atol=1e-6)
    for name in ("gelu", "GELU"):
        np.testing.assert_array_equal(modeling.get_activation(name)(x), modeling.gelu(x))
    np.testing.assert_array_equal(modeling.get_activation("ReLU")(x), [0, 0, 1])
    np.testing.assert_allclose(modeling.get_activation("tanh")(x), np.tanh(x), rtol=1e-6)
    assert modeling.get_activation(np.sin) is np.sin
    assert [modeling.get_activation(name) for name in ("linear", "", None)] == [None] * 3
    with pytest.raises(ValueError, match="Unsupported activation: 'swish'"):
        modeling.get_activation("swish")


def test_assignment_map(golden):
    folder = golden / "model" / "config1"
    model = modeling.BertModel(modeling.BertConfig.from_json_file(str(folder / "bert_config.json")))
    model.build()
    assignment, initialized = modeling.get_assignment_map_from_checkpoint(
        model.trainable_variables, str(folder / "bert_model.ckpt")
    )
    assert len(assignment) == 5 + 16 * 2 + 2 and all(key == value for key, value in assignment.items())
    assert "bert/encoder/layer_1/output/LayerNorm/gamma" in assignment  # and no cls/..., which the encoder lacks
    assert all(name.startswith("bert/") for name in assignment)
    assert set(initialized) == {spelling for name in assignment for spelling in (name, name + ":0")}
    assert set(initialized.values()) == {1}
    some = model.pooler.trainable_variables
    found = modeling.get_assignment_map_from_checkpoint(some, str(folder / "bert_model.ckpt"))[0]
    assert list(found) == ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
    with pytest.raises(FileNotFoundError):
        modeling.get_assignment_map_from_checkpoint(some, str(folder / "none.ckpt"))


def test_optimizer_class():
    """The specification's trajectory; and nothing is decayed or clipped unless asked for."""
    import keras

    variable, found = keras.Variable([0.5], name="weights"), []
    optimizer = optimization.AdamWeightDecayOptimizer(0.1, weight_decay_rate=0.01)
    for gradient in (0.1, -0.2, 0.05):
        optimizer.apply_gradients([(keras.ops.convert_to_tensor([gradient]), variable)])
        found.append(float(variable[0]))
    np.testing.assert_allclose(found, [0.18337220237, 0.33874587942, 0.40606288601], rtol=2e-6)
    assert optimization.AdamWeightDecayOptimizer(0.1).weight_decay_rate == 0.0
    assert optimizer.global_clipnorm is None and optimizer.name == "AdamWeightDecayOptimizer"
    excluded = optimization.AdamWeightDecayOptimizer(0.1, 0.01, exclude_from_weight_decay=["bias"])
    excluded.build([keras.Variable([0.5], name="bias"), keras.Variable([0.5], name="kernel")])
    assert excluded.decayed == [False, True]
    again = keras.optimizers.deserialize(keras.optimizers.serialize(excluded))
    assert type(again) is type(excluded) and again.get_config() == excluded.get_config()


def test_create_optimizer(golden):
    tables = json.loads((golden / "optimizer" / "lr_schedule.json").read_text())
    for table in tables:
        arguments = {name: table[name] for name in ("init_lr", "num_train_steps", "num_warmup_steps")}
        optimizer = optimization.create_optimizer(**arguments)
        assert (optimizer.weight_decay_rate, optimizer.global_clipnorm) == (0.01, 1.0)
        assert optimizer.excluded_patterns == ("LayerNorm", "layer_norm", "bias")
        for step, rate in table["step_and_lr"]:
            optimizer.iterations.assign(step)
            assert float(optimizer.learning_rate) == pytest.approx(rate, rel=1e-6)


KINDS = [(name, kind) for name in ("Cola", "Mnli", "Mrpc", "Xnli") for kind in ("train", "dev", "test")]
KINDS.remove(("Xnli", "test"))  # not in the original


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_processors_and_features_equal_the_originals(golden, english, name, kind):
    folder, length = golden / "classifier" / name.lower(), 32
    expected = lines_of(folder / f"features_{kind}_{length}.jsonl.gz")
    processor = getattr(run_classifier, f"{name}Processor")()
    examples = getattr(processor, f"get_{kind}_examples")(str(folder))
    if kind == "dev":
        examples.append(run_classifier.PaddingInputExample())
    features = run_classifier.convert_examples_to_features(examples, processor.get_labels(), length, english)
    for example, feature, record in zip(examples, features, expected, strict=True):
        for key in ("guid", "text_a", "text_b", "label"):
            assert getattr(example, key, None) == record[key], key
        for key in ("input_ids", "input_mask", "segment_ids", "label_id", "is_real_example"):
            assert getattr(feature, key) == record[key], (record["guid"], key)


def test_a_processor_of_ones_own(tmp_path, english, caplog):
    class ReviewProcessor(run_classifier.DataProcessor):
        def get_dev_examples(self, data_dir):
            rows = self._read_tsv(f"{data_dir}/dev.tsv")
            return [run_classifier.InputExample(guid=f"dev-{k}", text_a=a, label=b) for k, (b, a) in enumerate(rows)]

        def get_labels(self):
            return ["bad", "good"]

    (tmp_path / "dev.tsv").write_text('good\tA "quoted warm film\n\nbad\tTwo hours\n')
    processor = ReviewProcessor()
    with pytest.raises(NotImplementedError, match="ReviewProcessor does not define get_train_examples"):
        processor.get_train_examples(str(tmp_path))
    examples = processor.get_dev_examples(str(tmp_path))
    assert [example.text_a for example in examples] == ['A "quoted warm film', "Two hours"]
    with caplog.at_level("INFO"):
        feature = run_classifier.convert_single_example(0, examples[0], ["bad", "good"], 6, english)
        run_classifier.convert_single_example(5, examples[1], ["bad", "good"], 6, english)
    assert [record.message for record in caplog.records] == ['Example dev-0, label good: [CLS] a " quoted warm [SEP]']
    assert feature == run_classifier.InputFeatures([101, 1037, 1000, 9339, 4010, 102], [1] * 6, [0] * 6, 1, True)


def features_of(examples, tokenizer, size, is_training) -> list:
    features = []
    sizes = dict(zip(("max_seq_length", "doc_stride", "max_query_length"), SQUAD_SIZES[size], strict=True))
    run_squad.convert_examples_to_features(
        examples=examples, tokenizer=tokenizer, is_training=is_training, output_fn=features.append, **sizes
    )
    return features


@pytest.mark.parametrize("version", ["v1.1", "v2.0"])
@pytest.mark.parametrize("mode", ["train", "predict"])
def test_squad_features_equal_the_originals(golden, english, mode, version):
    """Also of examples that are made with the original's arguments."""
    folder, is_training = golden / "squad", mode == "train"
    examples = run_squad.read_squad_examples(str(folder / f"{mode}-{version}.json"), is_training, version == "v2.0")
    names = ("qas_id", "question_text", "doc_tokens", "orig_answer_text", "start_position", "end_position")
    made = [
        run_squad.SquadExample(*(getattr(example, name) for name in names), example.is_impossible)
        for example in examples
    ]
    assert [example.doc_tokens for example in made] == [example.doc_tokens for example in examples]
    paragraph = made[0].paragraph
    for word, start in zip(paragraph.words, paragraph.word_starts, strict=True):
        assert paragraph.context.startswith(word, start)
    features = features_of(examples, english, "S64", is_training)
    assert features_of(made, english, "S64", is_training) == features
    expected = lines_of(folder / f"features-{mode}-{version}-S64.jsonl.gz")
    for feature, record in zip(features, expected, strict=True):
        for key in ("token_to_orig_map", "token_is_max_context"):
            record[key] = {int(place): value for place, value in record[key].items()}
        assert vars(feature) == {**record, "is_impossible": bool(record["is_impossible"])}


@pytest.mark.parametrize(
    "name", ["v1.1-S64", "v1.1-S64-nbest5-len8", "v2.0-S64", "v2.0-S64-nbest10-len8", "v2.0-S64-nbest16-len8"]
)
def test_squad_answers_equal_the_originals(golden, english, tmp_path, name):
    folder, expected, version = golden / "squad", golden / "squad" / f"output-{name}", name.split("-")[0]
    settings = json.loads((expected / "settings.json").read_text())
    examples = run_squad.read_squad_examples(str(folder / f"predict-{version}.json"), False, version == "v2.0")
    features = features_of(examples, english, "S64", False)
    with np.load(folder / f"logits-{version}-S64.npz") as logits:
        columns = (logits[column].tolist() for column in ("unique_ids", "start_logits", "end_logits"))
        results = list(map(run_squad.RawResult, *columns))
    files = [tmp_path / f"{kind}.json" for kind in ("predictions", "nbest_predictions", "null_odds")]
    numbers = (settings.pop(key) for key in ("n_best_size", "max_answer_length", "do_lower_case"))
    run_squad.write_predictions(examples, features, results[::-1], *numbers, *map(str, files), **settings)
    assert [file.name for file in files if file.exists()] == [file.name for file in files][: 2 + (version == "v2.0")]
    for file in filter(lambda file: file.exists(), files):
        packed = expected / f"{file.name}.gz"
        original = gzip.decompress(packed.read_bytes()) if packed.exists() else (expected / file.name).read_bytes()
        assert file.read_bytes() == original
