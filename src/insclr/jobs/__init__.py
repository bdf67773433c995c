"""Whole jobs that combine several packages: train and report, the demo, ablation tables."""
