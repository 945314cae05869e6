// The C interface of the native kernels; compiled once for each instruction set.
#define FK_API extern "C" __attribute__((visibility("default")))

// Raised with every change of the interface; `ABI` in ../library.py is the same number.
FK_API int fk_abi(void) { return 1; }
