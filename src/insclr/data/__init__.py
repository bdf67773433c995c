"""Images in: lists, labels, decoding, views, training tuples."""
