"""The organisation's side: the daemon, the evaluator, and the operator's commands over HTTP."""
