"""Writes folds.json: the divisions of scikit-learn that draw nothing at random, and the class counts of those that do.

Made with Python 3, scikit-learn and numpy of the versions that the file names.
"""

import json
import pathlib

import numpy
import sklearn
from sklearn.model_selection import GroupKFold, GroupShuffleSplit, KFold, StratifiedKFold, train_test_split

random = numpy.random.RandomState(0)


def folds(split):
    return [validation.tolist() for _, validation in split]


cases = {"versions": f"scikit-learn {sklearn.__version__}, numpy {numpy.__version__}"}
cases["k_fold"] = [
    {"len": n, "folds": k, "validation": folds(KFold(k).split(range(n)))}
    for n, k in [(2, 2), (10, 3), (10, 10), (17, 4), (100, 7)]
]
cases["stratified_k_fold"] = []
for n, classes, k in [(6, 2, 2), (30, 3, 3), (50, 4, 5), (101, 7, 4)]:
    labels = random.randint(0, classes, n)
    cases["stratified_k_fold"].append(
        {"labels": labels.tolist(), "folds": k, "validation": folds(StratifiedKFold(k).split(labels, labels))}
    )
cases["group_k_fold"] = []
for sizes, k in [([3, 1, 2], 2), ([5, 9, 1, 7, 3, 2], 3), ([11, 4, 6, 8, 10, 2, 1, 20], 4)]:
    groups = random.permutation(numpy.repeat(numpy.arange(len(sizes)), sizes))
    cases["group_k_fold"].append(
        {"groups": groups.tolist(), "folds": k, "validation": folds(GroupKFold(k).split(groups, groups, groups))}
    )
cases["stratified_split"] = []
for counts, part in [([40, 40, 20], 0.2), ([7, 30, 13], 0.3), ([2, 50, 9], 0.5), ([90, 11], 0.25), ([13, 8, 5, 3], 0.4)]:
    labels = random.permutation(numpy.repeat(numpy.arange(len(counts)), counts))
    seen = set()
    for seed in range(50):
        _, validation = train_test_split(labels, test_size=part, stratify=labels, random_state=seed)
        seen.add(tuple(numpy.bincount(validation, minlength=len(counts)).tolist()))
    # More than one where scikit-learn breaks a tie by chance.
    cases["stratified_split"].append({"labels": labels.tolist(), "part": part, "counts": sorted(seen)})
cases["group_split"] = []
for sizes, part in [([3, 1, 2], 0.3), ([5, 9, 1, 7, 3, 2], 0.5), ([1] * 9, 0.1)]:
    groups = random.permutation(numpy.repeat(numpy.arange(len(sizes)), sizes))
    _, validation = next(GroupShuffleSplit(1, test_size=part, random_state=0).split(groups, groups, groups))
    cases["group_split"].append({"groups": groups.tolist(), "part": part, "count": len(set(groups[validation].tolist()))})

path = pathlib.Path(__file__).with_name("folds.json")
path.write_text(json.dumps(cases) + "\n")
