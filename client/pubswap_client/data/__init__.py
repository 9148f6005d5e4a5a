"""An organisation's data sets: reading problems and splitting sets."""
