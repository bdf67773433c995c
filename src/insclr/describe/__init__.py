"""The describing pipeline: from image files to features and descriptors."""
