"""An organisation's own adapter on top of the shared one, which it keeps to itself."""
