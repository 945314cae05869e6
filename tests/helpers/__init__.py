"""What more than one test module needs. No test module imports another one; shared code goes here.

- `arrivals`: updates that arrive at a server, and the timeline of an asynchronous run
- `browser`: a browser's side of a live page: requests over real sockets, and a reader of an event stream
- `chains`: chains of layers as modules, also random; the kernels of every instruction set; autograd client by client
- `clock`: runs on the virtual clock with an executor that takes no time
- `commands`: the command line, in this process or in one of its own
- `damage`: any file with a few bytes damaged
- `declared`: what rules declare that tests train without a server: anything
- `disk`: a disk that is full
- `fedasmu`: FedASMU's server and its LSTM in numpy, and jobs and uploads for it
- `federation`: six unequal clients whose training is written out in numpy; `train` runs fedkeel on them
- `folders`: what a run left in its folder, and runs that are stopped and resumed
- `loopback`: a web server on this machine with files that a test gives it, and a guard against all other hosts
- `methods`: settings by which every method fits a small federation
- `mutations`: experiments turned into ones that nobody would write
- `native`: the native library, or the reason to skip a test; scripts as modules; compilers that only pretend
- `numbered`: data whose samples are told apart by number, and who sees which of them
- `oracles`: the gradient oracle of one client
- `processes`: processes forked from this one, which has loaded everything
- `promise`: what the loader promises, whatever it is given
- `quadratics`: the training loop on quadratics
- `report_folders`: run folders written by hand, for figures and reports
- `repository`: where the repository lies
- `studies`: tiny comparisons, run or written by hand
- `tables`: a table of hospitals, in memory and as a CSV file
- `tiers`: which cases of a test are in the fast tier
- `workers`: orders for worker processes
- `world`: a world for tests of the core: clients act when a test says so
"""
