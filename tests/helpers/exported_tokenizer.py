"""A tokenizer's graph in a SavedModel, and its answers in a process that has TensorFlow but not this project."""

import json
import subprocess
import sys

import tensorflow as tf

_LOADER = """
import json, sys
import tensorflow as tf
if sys.argv[2] == "text":
    import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2
directory, texts = sys.argv[1], tf.constant(json.loads(sys.stdin.read()))
loaded = tf.saved_model.load(directory)
ids, starts, ends = loaded.graph.tokenize(texts)
ops = set()
for meta in saved_model_pb2.SavedModel.FromString(open(directory + "/saved_model.pb", "rb").read()).meta_graphs:
    ops |= {node.op for node in meta.graph_def.node}
    ops |= {node.op for function in meta.graph_def.library.function for node in function.node_def}
print(json.dumps({
    "ids": ids.to_list(), "starts": starts.to_list(), "ends": ends.to_list(),
    "encoded": loaded.graph.encode(texts).to_list(),
    "served": loaded.signatures["serving_default"](texts=texts)["ids"].numpy().tolist(), "ops": sorted(ops),
    "ours": sorted(name for name in sys.modules if name.startswith(("bert_tf", "tokenizers", "sentencepiece"))),
}))
"""


class _Exported(tf.Module):
    """The graph inside a module with a serving signature, as in an export."""

    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")])
    def serve(self, texts):
        return {"ids": self.graph.encode(texts).to_tensor(-1)}


def assert_answers_elsewhere(graph, tokenizer, texts: list[str], folder, *, tensorflow_text: bool = True) -> list[str]:
    """Holds the answers to `encode_with_offsets`; without assets, and without Python code of ours.

    Args:
      folder: a new one for the export. tensorflow_text: the process imports it.

    Returns:
      the names of the ops in the SavedModel.
    """
    module = _Exported(graph)
    tf.saved_model.save(module, str(folder), {"serving_default": module.serve})
    assert not list((folder / "assets").glob("*"))
    result = subprocess.run(
        [sys.executable, "-c", _LOADER, str(folder), "text" if tensorflow_text else ""],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        cwd=folder.parent,
        env={"PATH": "/usr/bin"},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout.splitlines()[-1])
    expected = [tokenizer.encode_with_offsets(text) for text in texts]
    assert found["ids"] == found["encoded"] == [ids for ids, _ in expected]
    assert found["starts"] == [[start for start, _ in offsets] for _, offsets in expected]
    assert found["ends"] == [[end for _, end in offsets] for _, offsets in expected]
    width = max(len(ids) for ids, _ in expected)
    assert found["served"] == [ids + [-1] * (width - len(ids)) for ids, _ in expected]
    assert found["ours"] == []
    return found["ops"]
