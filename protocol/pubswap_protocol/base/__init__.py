"""A base model's files: their headers, and the names of the text model's tensors."""
