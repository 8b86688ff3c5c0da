"""The lab: scenarios on a real local cluster that show what the system does, and check it.

`scenario` is what a scenario is made of, `lab.Lab` what its steps work with, `runner` runs one and `catalog`
knows them all. A scenario is a lesson and a test at once: every step predicts, acts, observes and checks.
"""
