"""What a run says."""
