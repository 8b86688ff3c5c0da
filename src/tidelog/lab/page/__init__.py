"""The lab in a browser: `/lab` in a console that follows the cluster of the scenario that runs.

`lanes` and `timeline` turn what a session tells into values that templates draw, `stage` has the session,
`pages` the routes, `serving` the console that changes its cluster with the session.
"""
