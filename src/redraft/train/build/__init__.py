"""Builders of the training and evaluation data of `tiny`: `python -m redraft.train.build --out DIR [--only NAME]`.

Every builder reads named, versioned, permissively licensed sources (see `sources` and NOTICE), or generates its data.
"""
