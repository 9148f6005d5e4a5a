"""A run for machines without internet: wheels, base model and run card in one folder."""
