"""Tables of measured kernel times, as AIConfigurator lays them out, each as one tidy frame."""
