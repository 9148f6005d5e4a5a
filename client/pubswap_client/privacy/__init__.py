"""What an adapter tells of the problems that it was trained on, measured by attacks."""
