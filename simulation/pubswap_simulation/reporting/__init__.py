"""From a store of results to a paper's tables, pictures and verdicts.

section.py     the results of one comparison, by row (methods.py), tau and seed
metrics.py     measures of one result; estimates.py: their means with intervals, paired differences
tables.py      rows x tau of a measure; costs.py: bytes and seconds; claims.py: verdicts
report.py      all of it as data: report.json
markdown.py    report.md; terminal.py: a summary; pictures/: the PNGs
paper.toml     the paper's own figures
"""
