// The C interface. Memory is the caller's; nothing here keeps a pointer beyond a call, but for a network's workspace.
#pragma once
#include <cstdint>

#define FK_API extern "C" __attribute__((visibility("default")))
#define FK_ABI 4  // as in library.py; one more with every change of this file

enum fk_kind { FK_CONVOLUTION, FK_LINEAR, FK_AVERAGE };

// One layer of a chain, and what follows it: a 2x2 max-pool (convolutions), a ReLU (but for averages).
struct fk_layer {
  int32_t kind;
  int32_t inputs, height, width;  // channels and size of the images it sees; a linear layer: features, 1, 1
  int32_t outputs;
  int32_t k, pad;                 // the filters' side (1 to 7) and padding; of an average, its window and stride, and 0
  int32_t pool, relu;             // 0 or 1
  int64_t weight, bias;           // where they begin in a client's vector of weights; no bias: -1
};

// A client's local training: `steps` mini-batches, again and again through `samples`. In every step, with the mean
// gradient g of the mini-batch, which is masked, clipped, and gets `decay` times the (masked) weights:
//   d = share * g + offset + pull * (w - anchor);   v = momentum * v + d;   w = w - rate * v
// With `ascent`, g is the gradient at w + ascent * h / |h|, where h is that at w, masked. With `last` and `past`,
//   p = past;   past = keep * past + (1 - keep) * last;   d' = gain * (d - last + (late ? p : past));   last = d
// and d' takes the place of d.
struct fk_job {
  const void* start;              // weights, numbers of the networks' type, as all void* here
  void* w;                        // out: trained weights; may be `start`
  const int64_t* order;           // which samples of x and y it sees, pass by pass
  int64_t samples, next;          // of a pass; from one pass's first to the next one's in `order`
  const double* rates;            // learning rates, each for so many steps as `each` says
  const void *offset, *anchor;    // or null
  const void *first_last, *first_past;  // before the first step, or null
  void *last, *past;              // out: the same after the last step; both or none
  double share, pull, ascent;
  double keep, gain;              // beside `last` and `past`
  double loss;                    // out: summed over all samples seen, each when it was seen
  int64_t seen;                   // out: how many that were
  int64_t steps, each;
  int32_t batch;
  int32_t finite;                 // out: whether weights and loss are
  int32_t late;                   // beside `last` and `past`
};

// What all jobs of a call have in common.
struct fk_local {
  const void* mask;               // [D] of 0 and 1, or null
  double decay, clip, momentum;   // clip: the largest norm of a gradient, or 0
};

struct fk_network;                // a chain of layers and its workspace: one per thread

FK_API int fk_abi(void);
// `batch` is the largest mini-batch, `size` the length D of a vector of weights, `type` 4 (float) or 8 (double).
// Null where the layers do not fit together or memory is short.
FK_API fk_network* fk_new(const fk_layer* layers, int count, int batch, int64_t size, int type);
FK_API void fk_free(fk_network*);
// The networks must be of one kind; as many threads are used as there are networks.
// Returns 1, or 0 where memory was short.
FK_API int fk_run(fk_network** networks, int threads, const void* x, const int64_t* y, fk_job* jobs, int64_t count,
                  const fk_local* local);
// For each of k clients: to = base + scale times the gradient of the summed losses at w. `sizes` says how many samples
// it has; `which` [k][b] are their numbers in x and y.
// `losses` [k][b] are those of each. From one client's vector to the next it is `next_w`, `next_base` and `next_to`,
// which may be 0 (not `next_to`). `base` may be null (zeros), or `to`, which may be w. Returns as `fk_run`.
FK_API int fk_gradients(fk_network** networks, int threads, int64_t k, int64_t b, const void* x, const int64_t* y,
                        const int64_t* which, const int64_t* sizes, const double* scale, const void* w, int64_t next_w,
                        const void* base, int64_t next_base, void* to, int64_t next_to, void* losses);
// Tests w on `count` samples of x and y, or on those that `which` names: hits and summed losses of every `part`.
FK_API int fk_score(fk_network** networks, int threads, const void* w, const void* x, const int64_t* y,
                    const int64_t* which, int64_t count, int64_t part, int64_t* hits, double* losses);
// The two parts of the exact sum of k rows times their shares, which are scaled already: see mean.py. From one row to the
// next it is `next` numbers of the type. Returns 1, or 0 where an addend was too large or not a number: nothing counts.
FK_API int fk_mean(int threads, const void* rows, int64_t next, const double* shares, int64_t k, int64_t size, int type,
                   double* coarse, double* fine);
// What this processor's multiply-add units can do at best, on one core: operations per second.
FK_API double fk_peak(int type);
