"""What `fedkeel new` writes: `mine` stands for the name that the user gives."""
