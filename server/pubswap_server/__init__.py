"""The coordinator: runs, rounds and exchanges over HTTP. It never imports torch."""
