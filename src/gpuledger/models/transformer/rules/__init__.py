"""From the keys of a config.json to layers and blocks: what several architectures read alike."""
