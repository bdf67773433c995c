"""Parts of images: extract local features, keep them, estimate geometry, verify results."""
