"""The end of a member's thread before its work is done."""


class Stopped(BaseException):
    """The simulation ends; not an Exception, so that no member tries again or goes on."""
