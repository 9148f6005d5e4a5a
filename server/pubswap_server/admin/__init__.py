"""What an operator does beside a running coordinator: back it up, restore it, verify it."""
