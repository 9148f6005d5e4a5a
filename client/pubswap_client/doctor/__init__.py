"""`pubswap client doctor`: check everything that training needs, with advice for each fault."""
