"""From a store of results to one table, at most four plots, and one page.

methods.py     a result's row; section.py: the results of one comparison by row, tau and seed
estimates.py   means over seeds with intervals, and paired differences; contrasts.py: the named one
table.py       results.csv: a line for each run and evaluation
page.py        report.md; plots.py: the PNGs; paper.toml: the paper's own figures
"""
