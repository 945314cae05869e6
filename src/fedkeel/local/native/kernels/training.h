// A client's local training, step by step: gradient, mask, clipping, decay, course, momentum, update.
#pragma once
#include "network.h"

namespace fedkeel {

template <class T> class Training {
  typedef Vectors<T> Q;
  typedef typename Q::V V;
  static constexpr int L = Q::L;
  Network<T> network;
  std::vector<T> g, velocity, losses;

 public:
  Training(const fk_layer* layers, int count, int batch, long size)
      : network(layers, count, batch, size), losses(batch) {}

  void run(fk_job& job, const T* x, const int64_t* y, const fk_local& local) {
    const T* from = (const T*)job.start;
    T* w = (T*)job.w;
    job.loss = 0;
    job.seen = 0;
    int64_t steps = 0;
    for (int epoch = 0; epoch < job.epochs; epoch++)
      for (int64_t first = 0; first < job.samples && steps != local.limit; first += job.batch, steps++, from = w) {
        const int64_t* order = job.order + epoch * job.next + first;
        const int b = std::min<int64_t>(job.batch, job.samples - first);
        step(job, local, from, w, x, y, order, b, T(job.rates[epoch]), steps == 0);
        for (int i = 0; i < b; i++) job.loss += losses[i];
        job.seen += b;
      }
    if (!steps && from != w) memcpy(w, from, network.size * sizeof(T));
    job.finite = std::isfinite(job.loss) && finite(w);
  }

  void gradient(const T* w, const T* x, const int64_t* y, int b, T scale, const T* base, T* to, T* each) {
    if (!b) {
      for (long i = 0; i < network.size; i++) to[i] = base ? base[i] : T(0);
    } else if (b <= TOGETHER || to != w) {
      network.gradient(w, x, y, [](int64_t i) { return i; }, b, scale, base, to, each);
    } else {  // in parts, all of which need the weights as they are
      g.resize(network.size);
      network.gradient(w, x, y, [](int64_t i) { return i; }, b, scale, nullptr, g.data(), each);
      for (long i = 0; i < network.size; i++) to[i] = (base ? base[i] : T(0)) + g[i];
    }
  }

  long sample() const { return network.sample; }

  void score(const T* w, const T* x, const int64_t* y, const int64_t* which, int64_t first, int count, double& loss,
             int64_t& hits) {
    network.score(w, x, y, [&](int64_t i) { return which ? which[first + i] : first + i; }, count, loss, hits);
  }

 private:
  void step(const fk_job& job, const fk_local& local, const T* from, T* w, const T* x, const int64_t* y,
            const int64_t* order, int b, T rate, bool first) {
    const auto which = [&](int i) { return order[i]; };
    const bool plain = !job.offset && !job.anchor && !local.mask && !local.decay && !local.clip && !local.momentum;
    if (plain && b <= TOGETHER) {  // the gradient is added to the weights as it is computed
      network.gradient(from, x, y, which, b, -rate * T(job.share) / b, from, w, losses.data());
      return;
    }
    g.resize(network.size);
    network.gradient(from, x, y, which, b, T(1) / b, nullptr, g.data(), losses.data());
    if (local.momentum) velocity.resize(network.size);
    T factor = 1;
    if (local.clip) factor = clipped(local);
    for (long i = 0; i < network.size; i += L) {
      const int n = std::min<long>(L, network.size - i);
      const auto at = [&](const void* vector) {
        const T* p = (const T*)vector + i;
        return n == L ? Q::load(p) : Q::load(p, n);
      };
      const V before = at(from), mask = local.mask ? at(local.mask) : Q::all(T(1));
      V d = (at(g.data()) * factor + before * T(local.decay)) * mask * T(job.share);
      if (job.offset) d += at(job.offset);
      if (job.anchor) d += (before - at(job.anchor)) * T(job.pull);
      if (local.momentum) {
        if (!first) d += at(velocity.data()) * T(local.momentum);
        put(velocity.data() + i, d, n);
      }
      put(w + i, before - d * rate, n);
    }
  }

  FK_INLINE void put(T* to, V v, int n) {
    if (n == L) Q::store(to, v);
    else Q::store(to, v, n);
  }

  // By how much the gradient, as far as it is not masked, has to be shortened.
  T clipped(const fk_local& local) {
    double squares = 0;
    for (long i = 0; i < network.size; i++) {
      const double one = local.mask ? g[i] * ((const T*)local.mask)[i] : g[i];
      squares += one * one;
    }
    return std::min(T(1), T(local.clip) / (T(std::sqrt(squares)) + T(1e-6)));
  }

  bool finite(const T* w) const {
    V zeros = {};  // times anything that is finite: zero
    long i = 0;
    for (; i + L <= network.size; i += L) zeros += Q::load(w + i) * T(0);
    zeros += Q::load(w + i, network.size - i) * T(0);
    return Q::sum(zeros) == 0;
  }
};

}  // namespace fedkeel
