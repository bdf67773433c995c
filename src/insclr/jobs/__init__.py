"""Whole jobs made of several rooms: train and report, the demo, ablation tables."""
