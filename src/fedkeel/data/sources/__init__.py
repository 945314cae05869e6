"""Where the data sets' canonical files come from, and the cache folder that keeps them."""
