"""The wing that keeps: who owns which block, and the tensors behind the blocks."""
