"""The NVFlare job."""
