"""Quick compilation for `make test`: code and graphs for tiny models need not be fast.

`make test-slow` runs with TensorFlow's and XLA's own settings. A process that a test starts by itself, without the warm
server, has TensorFlow's.
"""

import os

_VARIABLE = "BERT_TF_QUICK_GRAPHS"


def choose() -> None:
    if "XLA_FLAGS" not in os.environ:
        flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_parallel_codegen_split_count=1"  # a program is one module
        os.environ[_VARIABLE] = "1"


def apply() -> None:
    """Switches TensorFlow's graph optimizer off in this process, if that was chosen: a fifth of most tests' time."""
    if _VARIABLE in os.environ:
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def draw_nothing() -> None:
    """Leaves pictures of scripts empty, likewise; what is drawn is looked at in training/test_best_model.py."""
    if _VARIABLE in os.environ:
        from matplotlib.figure import Figure

        save = Figure.savefig
        Figure.savefig = lambda _, file, **options: save(Figure((1, 1)), file, format=options.get("format"))
