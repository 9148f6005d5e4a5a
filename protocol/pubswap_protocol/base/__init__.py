"""A base model's files: their headers, the names of the text model's tensors, and the tokenizer."""
