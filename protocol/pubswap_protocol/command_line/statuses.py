"""How a command ends: its exit status. 0 is done, or the run is finished."""

ERROR = 1
USAGE = 2  # click's own
CANCELLED = 3  # the run is
INTERRUPTED = 130  # by Ctrl-C or SIGTERM
