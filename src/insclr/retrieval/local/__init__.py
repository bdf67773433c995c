"""Parts of images: local features, geometric verification, ranking by local descriptors."""
