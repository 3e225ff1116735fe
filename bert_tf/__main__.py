"""`bert-tf SCRIPT --flags`, as `python SCRIPT.py --flags` in the source folder: the scripts of an installed package."""

import ast
import importlib.util
import pathlib
import re
import runpy
import sys

import bert_tf

_SCRIPTS = (
    "run_classifier", "run_squad", "run_ner", "run_swag", "run_similarity", "run_domain", "extract_features",
    "create_vocab", "create_pretraining_data", "run_pretraining", "convert_checkpoint", "export_saved_model",
    "serve_client",
)  # fmt: skip


def main() -> None:
    """Runs the script that the first argument names, with or without .py; says which there are if it names none.

    --version prints the package's version.
    """
    script = sys.argv[1].removesuffix(".py") if len(sys.argv) > 1 else ""
    if script in _SCRIPTS:
        del sys.argv[1]
        runpy.run_module(f"bert_tf.cli.{script}", run_name="__main__", alter_sys=True)
        return
    if script == "--version":
        print(bert_tf.__version__)
        return
    print("usage: bert-tf SCRIPT --flags; bert-tf SCRIPT --help says more. The scripts:")
    for name in _SCRIPTS:
        source = pathlib.Path(importlib.util.find_spec(f"bert_tf.cli.{name}").origin).read_text(encoding="utf-8")
        print(f"  {name:24}{re.split('[:.,(]', ast.get_docstring(ast.parse(source)))[0]}")
    sys.exit(0 if script in ("", "-h", "--help") else f"bert-tf: error: there is no script {sys.argv[1]!r}.")


if __name__ == "__main__":
    main()
