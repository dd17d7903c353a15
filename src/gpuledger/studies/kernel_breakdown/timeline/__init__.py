"""A recorded timeline as a case: its step, what ran in it, and what the time model says of the same kernels."""
