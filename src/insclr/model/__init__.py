"""The network: backbone, pooling, embedding, whitening, and the model file."""
