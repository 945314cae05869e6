// Calls the C interface of the kernels under sanitizers: `make sanitize` compiles this with kernels/fedkeel.cpp, once
// for each sanitizer and instruction set, and fails if it does not return 0 or if a sanitizer reports something.
#include <cstdio>

#include "fedkeel.h"

int main() {
    if (fk_abi() != FK_ABI) {
        std::puts("fk_abi: not the version of the header");
        return 1;
    }
    return 0;
}
