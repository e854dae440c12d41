"""Second positives for training queries that have one judged passage: true, and not copies of it.

Three ways of making one, each a file of its own:

- :mod:`experiments.second_positives.recut`: a new passage cut elsewhere from the article of the judged one, the answer
  inside;
- :mod:`experiments.second_positives.answers`: another passage of the corpus from the same article, with the answer;
- :mod:`experiments.second_positives.renamed`: Python code with its variables renamed and its layout made anew.

The command ``python -m experiments.second_positives`` writes them with the data as a BEIR folder.
"""
