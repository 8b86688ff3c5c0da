"""The oracle: the same session on Apache Kafka and on Tidelog, every answer held against the other's.

    python -m tests.oracle --sessions 200 --seed 1

`session` is what is asked, as plain data; `generator` and `activities_*` make one from a seed; `runner`
carries it out on a system; `rules` says which parts of answers may differ and why; `judge` compares; `shrink`
finds the smallest session that still shows a difference; `recording` keeps Kafka's answers for runs without
Java; `systems` starts both; `coverage` counts what was exercised; `planted` breaks Tidelog on purpose.
"""
