"""Time of attention kernels: over prompts, for new tokens, in encoders, over selected keys, and backward."""
