"""An organisation's own, private adapter on top of the shared one."""
