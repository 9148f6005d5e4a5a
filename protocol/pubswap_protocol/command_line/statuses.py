"""Exit statuses of commands. 0 is success, or a finished run; 2 is click's own."""

ERROR = 1
CANCELLED = 3  # the run was cancelled
AGAIN = 75  # the time of --until is up and the run not finished; EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # by Ctrl-C or SIGTERM
