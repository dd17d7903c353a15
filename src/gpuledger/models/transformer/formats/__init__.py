"""Number formats: of which tensor, in which kernel, and what a checkpoint says of its own."""
