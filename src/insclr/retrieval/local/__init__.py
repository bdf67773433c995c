"""What is known of parts of images: local features, geometric verification, ranking by local descriptors."""
