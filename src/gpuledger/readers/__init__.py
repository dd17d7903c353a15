"""Readers of the formats that other programs write: Nsight Compute, Neutrino, tables, GPU data sheets, kernel names."""
