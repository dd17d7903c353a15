"""Time of matrix multiplications: tiles, how libraries choose them, and what a choice costs."""
