"""DistilBERT: half of BERT's layers, no segments, no pooler (Sanh et al. 2019)."""
