"""How well models predict test rows: measures of all silos and runs at once, with intervals.

A measure is computed for each silo from its own test rows. Over all silos it is the mean of the silos'
values, weighted by their test rows. Where a silo's value is undefined (an AUC needs rows of two classes), the
silo is left out of that mean, and the result says so.

**Intervals** have a level of 95 % and are closed forms (`intervals`). They say what other test rows of the
same kind could have given for the same models.

| measure | interval |
| --- | --- |
| accuracy, sensitivity, specificity | Wilson's score interval |
| balanced accuracy, and the mean over silos | recovered from those of the classes or silos (`combined`) |
| AUC | Newcombe's fifth method, from the AUC and the two counts |
| average precision | Wilson's form with the number of positive rows (Boyd, Eng and Page 2013) |
| F1 | Wilson's interval of J = TP / (TP + FP + FN), of which F1 = 2 J / (1 + J) is a function |
| log loss, Brier score, squared and absolute error | Student's t, of the rows' values |
| R2 | Student's t of the rows' influence (the delta method) |
| calibration error | none: with few rows chance makes it larger, by an unknown amount |

Of several classes, AUC, average precision and F1 are means over classes, each against the rest, and their
limits are the means of the classes' limits. That is cautious, since classes err together.

The test rows are the only examples that a measure reads. Measures carry no noise, and no statement covers
them; `coterie.deploy.scores` has those that do.
"""
