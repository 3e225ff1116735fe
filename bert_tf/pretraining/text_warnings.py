"""What looks wrong with a text of which records were made, judged by the counts in the summary of a shard."""

from absl import logging

from bert_tf.pretraining.corpus import Corpus
from bert_tf.pretraining.corpus_formats import likely_language
from bert_tf.pretraining.shard import ShardJob

_MANY_NOT_IN_ORDER = 0.6  # of the pairs; with room for several sentences it is half of them
_MANY_RANDOM = 0.8  # of the pairs, where half are usual


def _splitting_advice(job: ShardJob) -> str:
    """The flags that make sentences of paragraphs; "" where they are given."""
    if job.text.split_sentences:
        return ""
    language = likely_language(next(Corpus(job.input_files, job.text).blocks(), ""))
    return f" If lines are paragraphs, --split_sentences --language={language} makes sentences of them."


def _warn_of_next_sentences(summary: dict, name: str, job: ShardJob) -> None:
    """Warns of labels of the next sentence that hardly differ, or contradict each other."""
    if summary["documents"] == 1:
        logging.warning(
            "%s: there is only one document, so the random next sentences come from the same document as the first "
            "ones, and their labels contradict each other. Documents of plain text are separated by a blank line; "
            "fewer shards hold more documents each.%s",
            name,
            _splitting_advice(job),
        )
    elif summary["random_next"] > _MANY_RANDOM * summary["instances"]:
        lines, tokens = summary["sentences"] / summary["documents"], summary["tokens"] / summary["sentences"]
        has_no_room = lines >= 2 and 2 * tokens > job.settings.max_seq_length
        longer = " A larger --max_seq_length has room for two." if has_no_room else ""
        logging.warning(
            "%s: %.0f%% of the pairs have a random next sentence, so that their labels are nearly constant. A pair in "
            "order needs two lines of one document that fit into --max_seq_length=%d; here a document has %.1f lines "
            "of %d tokens on average.%s%s Without such labels: --nsp=false.",
            name,
            100 * summary["random_next"] / summary["instances"],
            job.settings.max_seq_length,
            lines,
            tokens,
            longer,
            _splitting_advice(job),
        )


def warn_of_text(summary: dict, name: str, job: ShardJob) -> None:
    """Logs what looks wrong with the text of a shard."""
    settings = job.settings
    max_seq_length = settings.max_seq_length
    cuts_lines = settings.rows in ("pairs", "electra")
    if cuts_lines and summary["tokens"] > max_seq_length * summary["sentences"]:
        logging.warning(
            "%s: a line has %d tokens on average, and what goes beyond --max_seq_length=%d is cut off.%s",
            name,
            summary["tokens"] // summary["sentences"],
            max_seq_length,
            _splitting_advice(job),
        )
    if settings.ngram > 1 and not settings.do_whole_word_mask:
        logging.warning("%s: without --do_whole_word_mask, --ngram masks runs of pieces, not of words.", name)
    in_order = settings.next_sentence == "order"
    if in_order and summary["not_in_order"] > _MANY_NOT_IN_ORDER * summary["instances"]:
        logging.warning(
            "%s: %.0f%% of the pairs are not in order, since most rows have room for only one sentence, or documents "
            "have only one; the second then comes from elsewhere, as in the original. A larger --max_seq_length has "
            "room for several.%s",
            name,
            100 * summary["not_in_order"] / summary["instances"],
            _splitting_advice(job),
        )
    if settings.nsp and not in_order and summary["documents"]:
        _warn_of_next_sentences(summary, name, job)
    if summary["unknown_tokens"] > summary["tokens"] / 10:
        logging.warning(
            "%s: %.0f%% of the tokens are unknown: do --vocab_file, --do_lower_case and --strip_accents fit this text?",
            name,
            100 * summary["unknown_tokens"] / summary["tokens"],
        )
