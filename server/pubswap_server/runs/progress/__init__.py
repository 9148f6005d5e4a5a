"""What members report while they work; written a second later, because it is only a hint."""
