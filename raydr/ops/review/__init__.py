"""``raydr review``: a local web page on which people decide on the labels that judges doubt."""
