"""What the authorizer asks before a handler runs, API by API (`table`).

A guard stands between dispatch and the handler of its API, and only where an authorizer is configured. It
takes out of the request what its sender may not touch, has the handler do the rest, and puts the refusals
into the answer; or it refuses the whole. Handlers know nothing of it. Produce and Fetch, which are not
decoded by schemas, ask the authorizer themselves.

Nothing is looked up before it is allowed: who may not describe a topic gets the same answer whether or not
the topic exists.
"""
