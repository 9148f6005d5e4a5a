"""`pubswap data convert`: tables of other programs to problems."""
