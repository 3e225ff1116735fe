"""Sizes of the golden SQuAD windows."""

# Token windows of the original's golden SQuAD outputs: max_seq_length, doc_stride, max_query_length.
SQUAD_SIZES = {"S64": (64, 32, 16), "S384": (384, 128, 64)}
