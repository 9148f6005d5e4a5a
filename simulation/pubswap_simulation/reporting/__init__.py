"""From a store of results to tables, verdicts and plots.

measures.py    figures of one result, and series over its steps
methods.py     a result's row; section.py: the results of one comparison by row, tau and seed
estimates.py   means over seeds with intervals, paired differences; contrasts.py, claims.py: tests
costs.py       bytes and seconds
report.py      all of it as tables of records: report.json
markdown.py    report.md; plots.py: the PNGs
paper.toml     the paper's own figures
"""
