"""Learns a vocabulary from text files: WordPiece (BERT), byte-level BPE (RoBERTa) or SentencePiece (ALBERT).

    python create_vocab.py --input_file='corpus/*.txt' --output_file=vocab.txt --vocab_size=30522
    python create_vocab.py --kind=byte_bpe --input_file='corpus/*.txt' --output_file=roberta/vocab.json
    python create_vocab.py --kind=sentencepiece --input_file='corpus/*.txt' --output_file=albert/spiece.model

Give create_pretraining_data.py the same --do_lower_case and --strip_accents, so that it looks up the same pieces.
"""

import collections
import dataclasses
import os
import shlex

from absl import logging

from bert_tf.system import checks, script, storage, text_files
from bert_tf.system.declare import REQUIRED, define_flags, flags_given, non_default_settings, setting, settings_of
from bert_tf.system.text_files import encoding_setting

# A kind of vocabulary: the size of the released English models', the ending of the file's name by which models'
# directories have it, and the flags that it uses but --vocab_size.
Kind = collections.namedtuple("Kind", ["vocab_size", "ending", "flags"])

_COUNTED = ("min_frequency", "max_words")  # of those that are learned from counts of words
KINDS = {
    "wordpiece": Kind(30522, "", ("do_lower_case", "strip_accents", "num_unused", *_COUNTED, "max_characters")),
    "byte_bpe": Kind(50265, "/vocab.json", _COUNTED),
    "sentencepiece": Kind(30000, ".model", ("do_lower_case", "character_coverage", "max_sentences")),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularySettings:
    """What a vocabulary is learned from, and how."""

    input_file: str = setting(
        REQUIRED,
        "Text files to learn from: a comma-separated list of globs; some 100 MB of what you pre-train on are enough.",
        heading="All kinds of vocabularies",
    )
    encoding: str = encoding_setting("--input_file")
    output_file: str = setting(
        REQUIRED,
        "The vocabulary to write: vocab.txt, one token per line; of byte_bpe vocab.json, with merges.txt next to it; "
        "of sentencepiece spiece.model.",
        check=checks.check_output_file,
    )
    kind: str = setting(
        "wordpiece",
        "wordpiece: for BERT, ELECTRA and DistilBERT. byte_bpe: for RoBERTa; keeps case, covers every text. "
        "sentencepiece: a unigram model for ALBERT.",
        choices=tuple(KINDS),
    )
    vocab_size: int | None = setting(
        None,
        "Tokens in the vocabulary, including special ones. 8,000 suits small models on small corpora. Must equal "
        "vocab_size in the model's configuration. If unset, as in the released English models: 30,522 for wordpiece, "
        "50,265 for byte_bpe, 30,000 for sentencepiece.",
        least=1,
    )
    do_lower_case: bool = setting(
        True,
        "Lower-case the text. Give every later script the same value. Use false for named entities and parts of "
        "speech, and for most languages other than English.",
        heading="Only some kinds",
    )
    strip_accents: bool | None = setting(
        None,
        "Strip accents (é becomes e). Set --strip_accents=false for Korean, Japanese, Thai, Hindi and other scripts "
        "that this breaks. If unset, as --do_lower_case, as in the original.",
    )
    num_unused: int = setting(
        99,
        "Slots [unused0], [unused1], ... that you can later rename to words of your domain. 99 gives [UNK], [CLS], "
        "[SEP] and [MASK] the ids 100-103, as in the released vocabularies.",
        least=0,
    )
    min_frequency: int = setting(
        2,
        "How often two pieces must be adjacent to be merged. Raise it if rare misspellings enter the vocabulary.",
        least=1,
    )
    max_characters: int | None = setting(
        None,
        "Keep only this many different characters, the most frequent ones; words with others become [UNK]. Set it "
        "(say, to 5,000) for web text with stray scripts and emoji. If unset, all.",
        least=1,
    )
    max_words: int = setting(
        2_000_000,
        "Words in memory while counting, about 150 bytes each; the rarest are dropped. Lower it if memory is scarce.",
        least=1000,
    )
    character_coverage: float = setting(
        0.99995,
        "Share of the text whose characters get pieces, not <unk>; 0.9995 suits Chinese, Japanese and Korean.",
        least=0.9,
        most=1,
    )
    max_sentences: int = setting(
        10_000_000,
        "Lines kept in memory; from a longer text, a random sample of this many. Lower it if memory is scarce.",
        least=1000,
    )


FLAGS = define_flags(VocabularySettings)


def main(_):
    settings = settings_of(VocabularySettings, FLAGS)
    kind, output_file = KINDS[settings.kind], settings.output_file
    directory, flags_of_kinds = os.path.dirname(output_file), {name for one in KINDS.values() for name in one.flags}
    for name in sorted(flags_of_kinds & flags_given(FLAGS) - {*kind.flags}):
        raise ValueError(f"--{name} means nothing for --kind={settings.kind}.")
    if settings.kind == "wordpiece" and output_file.endswith((".json", ".model")):
        raise ValueError(f"--output_file={output_file} must not end in .json or .model for --kind=wordpiece.")
    if not f"/{output_file}".endswith(kind.ending):  # by which a tokenizer finds it
        raise ValueError(f"--output_file={output_file} must end in {kind.ending} for --kind={settings.kind}.")
    if not storage.is_remote(output_file) and os.path.exists(output_file):
        from bert_tf.store.open import has_weights

        if has_weights(directory or "."):
            raise ValueError(f"--output_file={output_file} is a model's vocabulary: its weights are there.")
    checks.check_not_empty(checks.check_input_files(settings.input_file, "--input_file"), "--input_file")
    if storage.is_remote(settings.input_file) or storage.is_remote(directory):
        script.start_tensorflow()  # only it opens them
        storage.gfile().makedirs(directory or ".")  # now, rather than fail after the work; local ones are checked above
    files = text_files.list_files(settings.input_file, flag="--input_file")
    if os.path.realpath(output_file) in map(os.path.realpath, files):
        raise ValueError(f"--output_file={output_file} is one of --input_file: it would be replaced.")
    text_files.warn_of_tables(files)
    from bert_tf.text import learn_vocabulary

    logging.info("Reading %d files, the first is %s", len(files), files[0])

    arguments = {name: getattr(settings, name) for name in (*kind.flags, "encoding")}
    arguments["vocab_size"] = settings.vocab_size or kind.vocab_size
    if settings.kind == "byte_bpe":
        contents = learn_vocabulary.learn_byte_bpe(files, **arguments)
        contents = {os.path.join(directory, name): content for name, content in contents.items()}
    elif settings.kind == "sentencepiece":
        contents = {output_file: learn_vocabulary.learn_sentence_piece(files, **arguments)}
    else:
        tokens = learn_vocabulary.learn_vocabulary(files, **arguments)
        contents = {output_file: "".join(token + "\n" for token in tokens).encode()}
    with storage.file_locked(output_file, *contents):
        storage.write_files(contents)
    next_flags = {"input_file": settings.input_file, "vocab_file": output_file}
    same = ("do_lower_case", "strip_accents", *non_default_settings(settings, ["encoding"]))
    next_flags |= {name: arguments[name] for name in same if arguments.get(name) is not None}
    command = shlex.join(f"--{name}={value}" for name, value in next_flags.items())
    logging.info(
        f"Wrote {' and '.join(contents)}. Next:\n  python create_pretraining_data.py {command} --output_file=..."
    )
