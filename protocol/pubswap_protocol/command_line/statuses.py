"""How a command ends: its exit status. 0 is done, or the run is finished; 2 is click's own."""

ERROR = 1
CANCELLED = 3  # the run is
AGAIN = 75  # the time of --until is up, the run is not finished; sysexits.h calls it EX_TEMPFAIL
INTERRUPTED = 130  # by Ctrl-C or SIGTERM
