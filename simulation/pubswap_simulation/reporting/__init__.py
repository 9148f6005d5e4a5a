"""From a store of results to what a paper prints.

estimates.py    a mean with its interval; a difference paired by seed
methods.py      which row of a table a result belongs to
section.py      the results of one comparison, by row, tau and seed
metrics.py      what is measured of one result
tables.py       rows x tau of a metric, and its differences to FedAvg
costs.py        bytes beside full fine-tuning, and seconds
claims.py       which of the paper's claims hold
report.py       all of it as data: report.json
markdown.py     report.md; terminal.py: what is printed
style.py, plots.py   the PNGs
paper.py        the paper's own figures
"""
