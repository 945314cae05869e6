"""Data from where users have it: tables, NumPy files, folders of images, Hugging Face data sets."""
