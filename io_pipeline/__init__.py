"""The feed: sources, stages and their tuner. Nothing lives here yet; arrays come in through
`ost.asarray`.
"""
