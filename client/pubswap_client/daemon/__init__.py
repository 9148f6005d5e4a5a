"""An organisation's daemon: its rounds, public steps and evaluations."""
