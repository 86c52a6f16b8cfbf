"""The wing that decides: which requests advance in a step, and by how much."""
