"""RoBERTa: BERT trained longer, without next sentences, on byte-level BPE (Liu et al. 2019)."""
