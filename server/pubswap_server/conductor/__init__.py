"""The work beside requests: rounds closed and averaged, stores kept clean."""
