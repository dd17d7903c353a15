"""Constants of the laws: fitted to measurements, kept in a table, chosen for a GPU."""
