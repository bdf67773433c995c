"""Read images: lists, labels, decoding, views, training tuples."""
