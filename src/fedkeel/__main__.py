"""`python -m fedkeel` is the command `fedkeel`."""

from fedkeel.cli import main

if __name__ == "__main__":
    main()
