"""`pubswap client doctor`: is everything there that training needs, and what to do if not."""
