// Calls the C interface of the kernels under sanitizers: `make sanitize` compiles this with kernels/fedkeel.cpp, once
// for each sanitizer and instruction set, and fails if it does not return 0 or if a sanitizer reports something.
#include <cstdio>

extern "C" int fk_abi(void);

int main() {
    if (fk_abi() < 1) {
        std::puts("fk_abi: not a version");
        return 1;
    }
    return 0;
}
