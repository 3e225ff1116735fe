"""`bert-tf SCRIPT --flags`, as `python SCRIPT.py --flags` in the source folder: the scripts of an installed package."""

import ast
import difflib
import importlib.util
import pathlib
import re
import sys

import bert_tf
from bert_tf.system import script

_SCRIPTS = (
    "run_classifier", "run_squad", "run_ner", "run_swag", "run_similarity", "run_domain", "extract_features",
    "create_vocab", "create_pretraining_data", "run_pretraining", "convert_checkpoint", "export_saved_model",
    "run_classifier_with_tfhub", "serve_client",
)  # fmt: skip


def main() -> None:
    """Runs the script that the first argument names, with or without .py; says which there are if it names none.

    --version prints the package's version.
    """
    name = sys.argv[1].removesuffix(".py") if len(sys.argv) > 1 else ""
    if name in _SCRIPTS:
        sys.argv[:2] = [f"{name}.py"]
        script.run(importlib.import_module(f"bert_tf.cli.{name}").main)
        return
    with script.exit_quietly_on_broken_pipe():
        if name == "--version":
            print(bert_tf.__version__)
            return
        print("usage: bert-tf SCRIPT --flags; bert-tf SCRIPT --help says more. The scripts:")
        for each in _SCRIPTS:
            source = pathlib.Path(importlib.util.find_spec(f"bert_tf.cli.{each}").origin).read_text(encoding="utf-8")
            print(f"  {each:26}{re.split('[:.,(]', ast.get_docstring(ast.parse(source)))[0]}")
    near = "".join(f" Did you mean {like}?" for like in difflib.get_close_matches(name, _SCRIPTS, 1, 0.8))
    sys.exit(0 if name in ("", "-h", "--help") else f"bert-tf: error: there is no script {sys.argv[1]!r}.{near}")


if __name__ == "__main__":
    main()
