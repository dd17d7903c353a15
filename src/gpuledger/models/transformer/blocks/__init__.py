"""The blocks that layers are made of: their weight matrices, what they cache, what joins them."""
