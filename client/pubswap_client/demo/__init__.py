"""The demo: small problems and a small base model, for a whole federation on a laptop."""
