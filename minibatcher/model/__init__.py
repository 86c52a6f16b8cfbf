"""The wing that computes: a plan becomes a batch, the batch becomes logits, the logits become tokens."""
