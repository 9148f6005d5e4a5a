"""What moves runs on without being asked: rounds closed and averaged, stores kept clean."""
