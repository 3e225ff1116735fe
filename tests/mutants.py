"""Planted faults: each changes one place of the code, and the tests named with it must see that.

    make mutants                        # all of them
    python tests/mutants.py electra.py  # those whose file or tests have this in their names

A copy of the tree is changed, one place at a time, and the tests run in it. A fault that they do not see is reported,
and the exit code is 1. An old text is there once, and the tests are the fastest that see the fault.
"""

import os
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "*.egg-info", ".*_cache")

# {(file in bert_tf/, tests): [(old text, new text)]}
MUTANTS = {
    ("training/step.py", "training/test_loop.py::test_loss_scale_halves_on_overflow_and_the_step_is_left_out"): [
        ("tf.where(finite, good_steps + 1, 0)", "good_steps + 1"),
        ("_STEPS_TO_DOUBLE_LOSS_SCALE = 2000", "_STEPS_TO_DOUBLE_LOSS_SCALE = 2001"),
        ("tf.where(~double, good_steps, 0)", "good_steps"),
        ("self.good_steps.assign(int(reader", "int((reader"),
        ("self.loss_scale.assign(reader", "float(reader"),
        ("scaled_loss = loss * state.loss_scale", "scaled_loss = loss")],
    ("training/step.py", "training/test_recipes.py::test_sum_of_losses_of_words"): [
        ("tf.maximum(norm, optimizer.global_clipnorm)", "norm")],
    ("training/step.py", "training/test_loop.py::test_a_nan_step_can_be_skipped_and_counted"): [
        ("counts = ~failed if", "counts = failed if")],
    ("training/step.py", "training/test_in_place.py::test_replicas_on_a_cpu_add_up_all_gradients_at_once"): [
        ("gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradients]", "pass")],
    ("training/step.py", "training/test_equal_steps.py::test_runs_end_equal"): [
        ("(replica * self._parts + part) * size", "part * size"),
        ("totals = add(self._totals(share))", "totals = self._totals(share)")],
    ("training/in_place.py", "training/test_in_place.py"): [
        ("tf.raw_ops.DeepCopy(x=variable.value)", "variable.value.read_value()"),
        ("matrices[1].any(axis=1) | matrices[2].any(axis=1)", "np.zeros(len(matrices[1]), np.bool_)"),
        ("            total[:] = 0", "            pass"),
        ("rows * (part + 1) // parts", "rows * (part + 1) // parts - 1"),
        ("if not reached.size:", "if not rows.size:"),
        ("len({*found}) == len(found) and ", ""),
        ("numbers[0] * rate[0], numbers[1]", "numbers[0], numbers[1]")],
    ("training/step.py", "training/test_in_place.py"): [
        ("self._in_place.addresses.clear()", "pass"),
        ("lambda done, _: done < count, body", "lambda done, state: (done < count) & ~state.failed, body"),
        ("return done + 1, first\n", "return done + 1, first._replace(gradient_norm=2.0 * first.gradient_norm)\n"),
        ("[self._in_place.check()] if self._in_place else []", "[]")],
    ("training/optimization.py", "training/test_recipes.py::test_robertas_schedule"): [
        ('first = 1.0 if self.warmup == "precedes" else 0.0', "first = 1.0"),
        ("max(steps - warmup, 1.0)", "steps")],
    ("training/optimization.py", "training/test_recipes.py::test_electras_schedule"): [
        ("rate * ops.minimum(warmed_up, 1.0)", "rate * warmed_up")],
    ("training/optimization.py", "training/test_recipes.py::test_layers_have_their_rates"): [
        ('layers + 1 if "/pooler/" in path else layers + 2', "layers + 2")],
    ("tasks/script.py", "training/test_recipes.py::test_warmups_as_runs_make_them"): [
        ('if recipe.warmup != "multiplies":', "if True:")],
    ("training/pretraining_run.py", "training/test_recipes.py::test_warmups_as_runs_make_them"): [
        ("math.ceil(recipe.warmup_proportion", "int(recipe.warmup_proportion")],
    ("training/checkpoints.py", "training/test_checkpoints.py"): [
        ("if 0 < keep_max <= len(listed) else []", "if 0 < keep_max else []"),
        ("if step < oldest]", "if step <= oldest]")],
    ("training/loop.py", "training/test_distribution.py"): [("zlib.crc32(values[name].tobytes(), checksum)", "0")],
    ("training/pretraining_tasks.py", "training/test_distribution.py"): [("zlib.crc32(payload, checksum)", "checksum")],
    ("tasks/script.py", "training/test_distribution.py"): [
        ("distribution.await_written(self.strategy, self.keeper.paths)", "pass")],
    ("training/fine_tuning.py", "training/test_best_model.py"): [
        ("score > old[self._metric]:", "score >= old[self._metric]:"),
        ("again = old is not None and", "again = False and"),
        (">= self._patience", "> self._patience"),
        ("tf.io.gfile.remove(results)", "pass")],
    ("data/token_rows.py", "data/test_records.py"): [
        ("[0, 0, stream, epoch]))", "[0, 0, 0, epoch]))")],
    ("models/similarity.py", "models/test_similarity.py models/test_objectives.py"): [
        ("return errors * errors, {", "return 0.5 * errors * errors, {"),
        ("excluded = ops.equal(firsts, ids[:, :1])", "excluded = ops.zeros_like(ops.equal(firsts, ids[:, :1]))"),
        ("excluded & ~partner", "excluded")],
    ("models/objectives.py", "models/test_objectives.py"): [
        ("* temperature**2", "* temperature"),
        ('if in_metrics and "is_real_example" in features:', "if False:")],
    ("models/objectives.py", "pretraining/test_packing.py"): [("* ops.expand_dims(weights, 1)", "")],
    ("models/electra.py", "training/test_electra.py::test_the_temperature_and_where_tokens_go"): [
        ("ops.logical_and(weights > 0, positions > 0)", "(weights > 0)"),
        ("logits = logits / self.temperature", "pass")],
    ("models/electra.py", "training/test_electra.py"): [
        ("false_rate[:-1] - false_rate[1:]", "false_rate[1:] - false_rate[:-1]")],
    ("models/electra.py", "models/test_dropout.py"): [('seed, "generator", embed', "seed, embed")],
    ("models/encoder.py", "models/test_dropout.py"): [
        ("not (return_all_layers or return_attention)", "not return_all_layers")],
    ("models/encoder.py", "training/test_recipes.py::test_frozen_layers_stay"): [
        ("if self.frozen_layers == len(order):", "if False:")],
    ("models/encoder.py", "models/test_descendants.py models/bert/test_huggingface.py"): [
        ("ops.not_equal(input_ids, config.pad_token_id)", "ops.not_equal(input_ids, -1)"),
        ("return ops.equal(numbers[:, :, None], numbers[:, None, :])", "return numbers[:, None, :] > 0")],
    ("models/encoder.py", "models/bert/test_encoder.py"): [
        ("ops.ones_like(inputs[\"input_ids\"]) if mask is None", "ops.ones_like(inputs[\"input_ids\"]) if True"),
        ('activation="tanh"', "activation=self.config.activation")],
    ("models/encoder.py", "models/test_partial_loads.py"): [
        ("self.freeze_layers(0)  #", "pass  #"),
        ("is_factor or id(variable) in trained", "is_factor")],
    ("training/loop.py", "training/test_loop.py"): [
        ("_NOT_FINITE % (step - 1", "_NOT_FINITE % (step"),
        ("min(count, max(1, int(_SECONDS_PER_CALL / self._seconds)))", "count"),
        ("*(period - step % period for", "*(period for"),
        ("if saved_step != step:", "if False:"),
        ("if received:\n                raise KeyboardInterrupt", "if False:\n                raise KeyboardInterrupt"),
        ("write_file(path, whole + end)", "write_file(path, whole + end + torn)")],
    ("data/records.py", "data/test_records.py"): [
        ("dataset.enumerate(start_step * parts)", "dataset.enumerate()"),
        ("row = (row + len(order)) % batch_size", "row = 0"),
        ("part * part_size) if prepare", "0) if prepare"),
        ("steps = -(-index.total_records // batch_size)", "steps = index.total_records // batch_size"),
        ("tf.where(tf.reshape(real, [batch_size]", "tf.where(tf.reshape(real | True, [batch_size]")],
    ("data/records.py", "data/test_records.py::test_values_that_can_not_be_are_named"): [
        ("tf.int64) == tf.reduce_sum(batch", "tf.int64) >= tf.reduce_sum(batch"),
        ("tf.bitcast(numbers, tf.uint64) < feature.limit", "numbers < feature.limit")],
    ("data/tables.py", "data/test_tables.py"): [
        ("if value in (None, -1)", "if value is None"),
        ("all_names += names", "pass"),
        ("if isinstance(feature, list):", "if False:"),
        ("changed |= _named_classes(schema, path)", "pass"),
        ("columns = [name for name in kinds if name not in left_out]", "columns = [*kinds]"),
        ('line.removeprefix("\\ufeff") if number == 0 else line', "line"),
        ('line.lstrip("\\ufeff") + "\\n"', 'line + "\\n"'),
        ("if len(cells) > width:", "if False:"),
        ("first = reader.line_num + 1", "first += 1"),
        ("line, counted = line + text.count(\"\\n\", counted, at), at", "line, counted = line + 1, at"),
        ("f\"{prefix}{name}.\"", "f\"{name}.\""),
        ('text = "\\n" * (start - 1) + "\\n".join', 'start, text = 1, "\\n".join')],
    ("store/pytorch_file.py", "store/test_pytorch_file.py"): [
        ("math.prod(filter(None, tensor.shape)) > largest or", ""),
        ("numbers[start:]", "numbers"),
        ("(values.astype(np.uint32) << 16)", "(values.astype(np.uint32) << 15)"),
        ("entry.CRC = entry.CRC or None", "entry.CRC = None"),
        ("len(entries) < len(archive.infolist())", "False"),
        ("0 not in tensor.shape and end > storage.count", "0 not in tensor.shape and end > storage.count + 1"),
        ("kinds != (_Storage, bool, int) or hooks", "hooks"),
        ("or negated_or_conjugated:", "or False:")],
    ("text/transformers_call.py", "text/test_transformers_call.py"): [
        ("room - shorter, shorter)", "shorter, room - shorter)"),
        ("shorter = min(first, second, room // 2)", "shorter = min(first, second)"),
        ("special[:: 1 if pairs is not None else 2]", "special"),
        ("(max(begin - before, 0), max(end - before, 0))", "(begin, end)"),
        ("[0] * len(first) + [second_segment if", "[0] * len(first) + [1 if"),
        ("[*first, *between]", "[*between, *first]"),
        ("\"word_ids\": -1}", "\"word_ids\": 0}"),
        ("sizes[strategy == \"only_second\"] < 1", "sizes[0] < 1")],
    ("serving/text_index.py", "serving/test_embedder.py::test_the_nearest_texts"): [
        ("np.argsort(-scores[best]", "np.argsort(scores[best]"),
        ("min(k, len(self.vectors))", "k")],
    ("serving/text_index.py", "serving/test_embedder.py::test_vectors_that_are_compared_by_their_products"): [
        ("normalized(vectors) if similarity == \"cosine\" else vectors", "normalized(vectors)")],
    ("serving/text_index.py", "serving/test_embedder.py::test_an_index_is_saved_next_to_its_texts"): [
        ("np.abs(computed - first[: len(computed)]).max(initial=0) > _ALIKE", "False")],
    ("serving/text_index.py", "serving/test_embedder.py::test_prompts_of_queries_and_texts"): [
        ("[:1], normalize, self.prompt_name", "[:1], normalize")],
    ("serving/text_index.py", "serving/test_embedder.py::test_damaged_files_of_an_index"): [
        ("not isinstance(header, dict) or not", "not"),
        ("vectors.size and (texts is None or len(texts) == len(vectors))", "vectors.size")],
    ("tasks/similarity/metrics.py", "tasks/test_choice_and_similarity.py"): [
        ("farthest = min(row", "farthest = max(row"),
        ("farthest - abs(farthest) * margin", "farthest - margin"),
        ("(*partners[anchor], anchor) if text in number_of", "partners[anchor] if text in number_of"),
        ("best = [corpus[number] for number in np.argsort(-row", "best = [corpus[number] for number in np.argsort(row"),
        ("zip(anchors[begin:], scores, strict=False)", "zip(anchors, scores, strict=False)")],
    ("system/declare.py", "system/test_checks.py"): [
        ("self.above < value < self.below", "self.above <= value <= self.below"),
        ("if self.choices and value not in self.choices:", "if False:"),
        ("heading = declared.heading or heading", "heading = declared.heading"),
        ("declared.unset and values[flag].value is not None", "values[flag].value is not None"),
        ("if (value := getattr(settings, name)) is not None:", "if value := getattr(settings, name):")],
    ("system/declare.py", "scripts/test_flags.py"): [
        ("default = list(default) if isinstance(default, tuple) else default", "pass")],
    ("system/hub.py", "system/test_hub.py"): [
        ("and not os.path.lexists(re.split(\"[/@]\", path)[0])", ""),
        ("revision = match[2] or (output_dir and _noted_commit(match[1], output_dir))", "revision = match[2]"),
        ("if _DESCRIPTION.fullmatch(file)]", "]"),
        ("filter(_CONFIGURATION.fullmatch, described)", "described"),
        ("missing = [file for file in files if not os.path.exists(os.path.join(folder, file))]", "missing = files"),
        ("if found != announced:", "if not found:"),
        ("    for file in files:\n        _remove", "    for file in []:\n        _remove"),
        ("if file.read() == sound:", "if file.read():"),
        ("file.lfs_sha256 or file.blob_id", "file.blob_id"),
        ("if wrong := _remove", "if False and _remove"),
        ('.match(f"/{file}")', '.match(file)'),
        ('.replace("~parquet", "refs/convert/parquet")', ""),
        ("@functools.cache\ndef _at_commit", "def _at_commit")],
    ("models/layers.py", "models/test_similarity.py"): [("ops.where(counted > 0, outputs, _LOWEST)", "outputs")],
    ("models/layers.py", "serving/test_embedder.py"): [
        ("(ops.shape(mask)[1]) >= skipped", "(ops.shape(mask)[1]) > skipped")],
    ("store/card.py", "models/test_card.py::test_licences_beside_the_weights"): [
        ("if phrase in words), {})", "), {})"),
        ("        **license,\n", ""),
        ("if isinstance(front.get(key), str)", "if front.get(key)")],
    ("store/variable_names.py", "models/test_partial_loads.py"): [
        ("/ a.shape[1]", "/ a.shape[0]"),
        ("return self.alpha / self.rank", "return self.alpha")],
    ("models/distillation.py", "models/test_objectives.py"): [
        ("teacher.trainable = False", "pass"),
        ('hidden = () if self.student.config.type_vocab_size else ("segment_ids",)', "hidden = ()"),
        ("hidden = () if self.student.config.type_vocab_size else", "hidden =")],
    ("models/dropout.py", "models/test_dropout.py models/test_similarity.py"): [
        ("scope.key * ops.convert_to_tensor([1, 1, count]", "scope.key * ops.convert_to_tensor([1, 1, 1]")],
    ("families/electra/__init__.py", "training/test_recipes.py::test_warmups_as_runs_make_them"): [
        ('learning_rate=rate, warmup_proportion=0.01, warmup="multiplies"',
         "learning_rate=rate, warmup_proportion=0.01")],
    ("families/distilbert/__init__.py", "training/test_recipes.py::test_warmups_as_runs_make_them"): [
        ('warmup="precedes_from_zero"', 'warmup="precedes"')],
    ("pretraining/mask_rules.py", "pretraining/test_masks.py"): [
        ("ids, drawn)\n    return features | mask_chosen(ids, chosen",
         "drawn, ids)\n    return features | mask_chosen(ids, chosen"),
        ("weights[list(special_ids)] = 0.0", "pass"),
        ("tf.math.ceil(wanted)", "tf.math.floor(wanted)"),
        ("others = tf.where(share < masking.mask_rate + masking.keep_rate, ids, drawn)",
         "others = tf.where(share < 0.9, ids, drawn)")],
    ("pretraining/mask_rules.py", "pretraining/test_masks.py::test_masks_are_those_of_the_plain_loop"): [
        ("int(masking.mask_rate * 2**32)", "int(0.8 * 2**32)"),
        ("int((masking.mask_rate + masking.keep_rate) * 2**32)", "int(0.9 * 2**32)")],
    ("tasks/classification/data.py", "tasks/classification/test_metrics.py"): [
        ('("matthews", "accuracy")', '("accuracy", "matthews")'),
        ('"sts-b": ("pearson", "spearman")', '"sts-b": ("spearman", "pearson")'),
        ('("mrpc", "qqp"), ("accuracy", "f1")', '("mrpc", "qqp"), ("f1", "accuracy")'),
        ('fromkeys(("mrpc", "qqp")', 'fromkeys(("mrpc",)')],
    ("tasks/ner/data.py", "tasks/ner/test_data.py"): [
        ('line.rstrip(" ") if file.separator == "\\t" else line.rstrip(" \\t")', 'line.rstrip(" \\t")'),
        ("tag = spell(ner_tags.OUTSIDE)", "pass")],
    ("tasks/squad/answers.py", "tasks/squad/test_metrics.py"): [
        ('if token_text[start] == " " or token_text[end] == " ":', "if False:"),
        ("if further == index:", "if True:"),
        ('if len(orig_text) - orig_text.count(" ") != len(token_text)', "if len(orig_text) != len(token_text)")],
    ("tasks/squad/metrics.py", "tasks/squad/test_metrics.py"): [
        ("tuple(map(max, zip", "tuple(map(min, zip"),
        ("scores.get(key, (0.0, 0.0))", "scores.get(key, (1.0, 1.0))")],
    ("text/wordpiece.py", "text/test_wordpiece.py"): [
        ("for _ in char.lower()]", "for _ in char]"),
        ("do_lower_case if strip_accents is None else strip_accents", "do_lower_case"),
        ('unicodedata.normalize("NFD", cleaned) if', 'unicodedata.normalize("NFC", cleaned) if')],
    ("text/wordpiece.py", "text/test_tokenizer_choice.py::test_all_is_that_of_transformers"): [
        ("[word] if word in self.never_split else", "")],
    ("system/released_models.py", "system/test_released_models.py"): [
        ("have = file.truncate(0)", "pass"),
        ("resume_size=have", "resume_size=0"),
        ("while tarred.fileobj and", "while False and"),
        ("(size := size + entry.size) > _MOST_UNPACKED", "False"),
        ("if sum(entry.file_size for entry in zipped.infolist()) > _MOST_UNPACKED", "if False"),
        ("if checksum != published", "if checksum != checksum")],
    ("serving/onnx_graph.py", "serving/test_onnx_runtime.py::test_the_files_of_a_version"): [
        ("epsilon=self.config.layer_norm_eps", "epsilon=1e-5")],
    ("serving/onnx_graph.py", "serving/test_onnx_runtime.py::test_answers_are_those_of_tensorflow"): [
        ("mask), self.constant(_MASK_BIAS))", "mask), self.constant(np.float32(0)))"),
        ("self.constant(self._scale)", "self.constant(np.float32(1))"), ("float(_MASK_BIAS)}", "0.0}"),
        ("(0, np.int64)), self.constant(1,", "(0, np.int64)), self.constant(0,")],
    ("models/layer_loop.py", "training/test_equal_steps.py::test_steps_end_as_those_of_unrolled_layers"): [
        ("x_gradient + tf.gather(inputs_gradient, turn)", "x_gradient"),
        ("tf.gather(record, turn)", "tf.gather(record, 0)")],
    ("models/dropout.py", "training/test_equal_steps.py::test_steps_end_as_those_of_unrolled_layers"): [
        ("words, \"int32\"), scope.turn", "words, \"int32\"), 0")],
}  # fmt: skip


def copied(folder: pathlib.Path) -> pathlib.Path:
    """Copies the tree into a folder, and makes this process one of the copy."""
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
    sys.path[:] = [path for path in sys.path if not pathlib.Path(path).resolve().is_relative_to(ROOT / "tests")]
    sys.dont_write_bytecode = True
    os.environ |= {"TMPDIR": str(folder), "PYTHONPATH": f"{tree}:{tree / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    tempfile.tempdir = None
    os.chdir(tree)
    return tree


def exit_code_of(tests: list[str]) -> int:
    """That of pytest in a child, which has what takes long to import: 0, all pass; 1, some fail."""
    import pytest
    import tensorflow  # noqa: F401

    process = os.fork()
    if not process:
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        given = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *(f"tests/{test}" for test in tests)]
        os._exit(pytest.main(given))
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main(wanted: list[str]) -> int:
    chosen = [
        (file, *texts, tests)
        for (file, tests), pairs in MUTANTS.items()
        for texts in pairs
        if not wanted or any(part in file + tests for part in wanted)
    ]
    problems = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copied(pathlib.Path(folder))
        if code := exit_code_of(sorted({test for *_, tests in chosen for test in tests.split()})):
            sys.exit(f"the tests fail without any fault, with exit code {code}")
        for number, (file, old, new, tests) in enumerate(chosen, start=1):
            path = tree / "bert_tf" / file
            text = path.read_text()
            fault = f"{file}: {old!r} -> {new!r}"
            if text.count(old) != 1:
                problems.append(f"{fault}: the old text is there {text.count(old)} times")
            else:
                path.write_text(text.replace(old, new))
                if (code := exit_code_of(tests.split())) != 1:
                    problems.append(f"{fault}: " + (f"exit code {code}" if code else f"not seen by {tests}"))
                path.write_text(text)
            print(f"{number} of {len(chosen)}, {len(problems)} unseen", flush=True)
    print("\n".join(problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
