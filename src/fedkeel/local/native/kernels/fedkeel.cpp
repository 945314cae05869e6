// The C interface, and who does the work: every thread has a network of its own and takes the next job that is left.
#include "fedkeel.h"

#include <atomic>
#include <ctime>
#include <system_error>
#include <thread>

#include "mean.h"
#include "training.h"

using namespace fedkeel;

struct fk_network {
  std::unique_ptr<Training<float>> single;
  std::unique_ptr<Training<double>> twice;
};

// work(thread) in so many threads, this one among them.
template <class F> static void together(int threads, F work) {
  std::vector<std::thread> others;
  others.reserve(threads);
  try {
    for (int thread = 1; thread < threads; thread++) others.emplace_back(work, thread);
  } catch (const std::system_error&) {  // the system gives no more of them: fewer do the same work
  }
  work(0);
  for (auto& each : others) each.join();
}

// f(training, number) for all numbers below `count`, each by one of the threads; whether memory was enough.
template <class F> static int share(fk_network** networks, int threads, int64_t count, F f) {
  std::atomic<int64_t> next{0};
  std::atomic<int> enough{1};
  together(int(std::min<int64_t>(threads, count)), [&](int thread) {
    try {
      for (int64_t number; (number = next++) < count;) {
        if (networks[thread]->single) f(*networks[thread]->single, number, float());
        else f(*networks[thread]->twice, number, double());
      }
    } catch (const std::bad_alloc&) {
      enough = 0;
    }
  });
  return enough;
}

FK_API int fk_abi(void) { return FK_ABI; }

FK_API fk_network* fk_new(const fk_layer* layers, int count, int batch, int64_t size, int type) try {
  auto made = std::make_unique<fk_network>();
  if (type == 4) made->single = std::make_unique<Training<float>>(layers, count, batch, size);
  else made->twice = std::make_unique<Training<double>>(layers, count, batch, size);
  return made.release();
} catch (const std::exception&) {
  return nullptr;
}

FK_API void fk_free(fk_network* network) { delete network; }

FK_API int fk_run(fk_network** networks, int threads, const void* x, const int64_t* y, fk_job* jobs, int64_t count,
                  const fk_local* local) {
  return share(networks, threads, count, [&](auto& training, int64_t number, auto type) {
    training.run(jobs[number], (const decltype(type)*)x, y, *local);
  });
}

FK_API int fk_gradients(fk_network** networks, int threads, int64_t k, int64_t b, const void* x, const int64_t* y,
                        const int64_t* which, const int64_t* sizes, const double* scale, const void* w, int64_t next_w,
                        const void* base, int64_t next_base, void* to, int64_t next_to, void* losses) {
  return share(networks, threads, k, [&](auto& training, int64_t c, auto type) {
    typedef decltype(type) T;
    training.gradient((const T*)w + c * next_w, (const T*)x, y, which + c * b, sizes[c], T(scale[c]),
                      base ? (const T*)base + c * next_base : nullptr, (T*)to + c * next_to, (T*)losses + c * b);
  });
}

FK_API int fk_score(fk_network** networks, int threads, const void* w, const void* x, const int64_t* y,
                    const int64_t* which, int64_t count, int64_t part, int64_t* hits, double* losses) {
  return share(networks, threads, (count + part - 1) / part, [&](auto& training, int64_t number, auto type) {
    typedef decltype(type) T;
    const int64_t first = number * part;
    hits[number] = 0;
    losses[number] = 0;
    training.score((const T*)w, (const T*)x, y, which, first, std::min(part, count - first), losses[number],
                   hits[number]);
  });
}

FK_API int fk_mean(int threads, const void* rows, int64_t next, const double* shares, int64_t k, int64_t size, int type,
                   double* coarse, double* fine) {
  const int64_t blocks = (size + COLUMNS - 1) / COLUMNS;
  std::atomic<int64_t> block{0};
  std::atomic<int> right{1};
  together(int(std::min<int64_t>(threads, blocks)), [&](int) {
    for (int64_t first; (first = COLUMNS * block++) < size;) {
      const bool sound = type == 4 ? add_up((const float*)rows, next, shares, k, size, first, coarse, fine)
                                   : add_up((const double*)rows, next, shares, k, size, first, coarse, fine);
      if (!sound) right = 0;
    }
  });
  return right;
}

// Of this thread alone, whatever else the machine does.
static double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

template <class T> static double peak() {
  typedef typename Vectors<T>::V V;
  constexpr long ROUNDS = 2000000;
  V sums[SUMS / 2] = {}, one = Vectors<T>::all(T(1e-3)), two = Vectors<T>::all(T(.999));
  double best = 0;
  for (int repeat = 0; repeat < 5; repeat++) {
    const double begun = seconds();
    for (long i = 0; i < ROUNDS; i++) {
      asm volatile("" : "+x"(one), "+x"(two));
      FK_UNROLL for (int n = 0; n < SUMS / 2; n++) sums[n] = sums[n] * two + one;
    }
    FK_UNROLL for (int n = 0; n < SUMS / 2; n++) asm volatile("" : "+x"(sums[n]));
    best = std::max(best, ROUNDS * (SUMS / 2) * 2.0 * Vectors<T>::L / (seconds() - begun));
  }
  return best;
}

FK_API double fk_peak(int type) { return type == 4 ? peak<float>() : peak<double>(); }
