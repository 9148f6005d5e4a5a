"""Adapters, updates and responses as safetensors files, checked before they are read."""
