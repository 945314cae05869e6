"""The report page of runs that are going on, served to browsers on this machine."""
