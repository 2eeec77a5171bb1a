"""A file for `redraft edit`: a name to change, and a slip in the last line to repair."""


def average(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)


class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = x
