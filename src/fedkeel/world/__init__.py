"""Where jobs are carried out: the simulated world and its clock."""
