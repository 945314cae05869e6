// A client's local training, step by step: gradient, mask, clipping, decay, course, momentum, update.
#pragma once
#include "network.h"

namespace fedkeel {

template <class T> class Training {
  typedef Vectors<T> Q;
  typedef typename Q::V V;
  static constexpr int L = Q::L;
  Network<T> network;
  std::vector<T> g, velocity, point, losses, other;
  T* own = nullptr;  // weights while they are trained

 public:
  Training(const fk_layer* layers, int count, int batch, long size)
      : network(layers, count, batch, size), losses(batch) {}

  void run(fk_job& job, const T* x, const int64_t* y, const fk_local& local) {
    const T* from = (const T*)job.start;
    // Steps are made in memory that begins with a whole line, which stacks do not; a single one needs no detour.
    const bool single = job.steps <= 1;
    if (!single && !own) own = network.template make<T>(network.size);
    T* w = single ? (T*)job.w : own;
    job.loss = 0;
    job.seen = 0;
    const int64_t* order = job.order;
    int64_t first = 0;
    for (int64_t number = 0; number < job.steps; number++, from = w) {
      const int b = std::min<int64_t>(job.batch, job.samples - first);
      step(job, local, from, w, x, y, order + first, b, T(job.rates[number / job.each]), number == 0);
      for (int i = 0; i < b; i++) job.loss += losses[i];
      job.seen += b;
      first += job.batch;
      if (first >= job.samples) first = 0, order += job.next;
    }
    if (!job.steps) {
      copy(from, w);
      if (job.last) copy(job.first_last, job.last), copy(job.first_past, job.past);
    }
    copy(w, job.w);
    job.finite = std::isfinite(job.loss) && finite(w);
  }

  void gradient(const T* w, const T* x, const int64_t* y, const int64_t* which, int b, T scale, const T* base, T* to,
                T* each) {
    const auto number = [&](int64_t i) { return which[i]; };
    if (!b) {
      for (long i = 0; i < network.size; i++) to[i] = base ? base[i] : T(0);
    } else if (b <= TOGETHER || to != w) {
      network.gradient(w, x, y, number, b, scale, base, to, each);
    } else {  // in parts, all of which need the weights as they are
      g.resize(network.size);
      network.gradient(w, x, y, number, b, scale, nullptr, g.data(), each);
      for (long i = 0; i < network.size; i++) to[i] = (base ? base[i] : T(0)) + g[i];
    }
  }

  void score(const T* w, const T* x, const int64_t* y, const int64_t* which, int64_t first, int count, double& loss,
             int64_t& hits) {
    network.score(w, x, y, [&](int64_t i) { return which ? which[first + i] : first + i; }, count, loss, hits);
  }

 private:
  void step(const fk_job& job, const fk_local& local, const T* from, T* w, const T* x, const int64_t* y,
            const int64_t* order, int b, T rate, bool first) {
    const auto which = [&](int i) { return order[i]; };
    const bool plain =
        !job.offset && !job.anchor && !job.last && !local.mask && !local.decay && !local.clip && !local.momentum;
    if (!plain || job.ascent || b > TOGETHER) g.resize(network.size);
    const T* at = from;  // where the gradient is taken
    T* each = losses.data();
    if (job.ascent) {
      network.gradient(from, x, y, which, b, T(1) / b, nullptr, g.data(), each);
      at = climbed(from, job.ascent, local);
      other.resize(losses.size());
      each = other.data();  // the losses that count are those at the weights
    }
    if (plain && (b <= TOGETHER || at != from)) {  // the gradient is added to the weights as it is computed
      network.gradient(at, x, y, which, b, -rate * T(job.share) / b, from, w, each);
      return;
    }
    network.gradient(at, x, y, which, b, T(1) / b, nullptr, g.data(), each);
    if (local.momentum) velocity.resize(network.size);
    const T factor = local.clip ? std::min(T(1), T(local.clip) / (norm(local) + T(1e-6))) : T(1);
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
      if (job.last) {
        const V last = at(first ? job.first_last : job.last), p = at(first ? job.first_past : job.past);
        const V past = p * T(job.keep) + last * T(1 - job.keep);
        put((T*)job.last + i, d, n);
        put((T*)job.past + i, past, n);
        d = (d - last + (job.late ? p : past)) * T(job.gain);
      }
      if (local.momentum) {
        if (!first) d += at(velocity.data()) * T(local.momentum);
        put(velocity.data() + i, d, n);
      }
      put(w + i, before - d * rate, n);
    }
  }

  void copy(const void* from, void* to) const {
    if (from != to) memcpy(to, from, network.size * sizeof(T));
  }

  FK_INLINE void put(T* to, V v, int n) {
    if (n == L) Q::store(to, v);
    else Q::store(to, v, n);
  }

  // w + ascent * g / |g|, as far as it is not masked.
  const T* climbed(const T* w, double ascent, const fk_local& local) {
    point.resize(network.size);
    const T* mask = (const T*)local.mask;
    const T by = T(ascent) / (norm(local) + T(1e-12));
    for (long i = 0; i < network.size; i++) point[i] = w[i] + g[i] * by * (mask ? mask[i] : T(1));
    return point.data();
  }

  // Of the gradient, as far as it is not masked.
  T norm(const fk_local& local) const {
    constexpr long PART = 1024;  // few enough for numbers of type T
    const T* mask = (const T*)local.mask;
    double squares = 0;
    for (long first = 0; first < network.size; first += PART) {
      V sum = {};
      for (long i = first; i < std::min(first + PART, network.size); i += L) {
        const int n = std::min<long>(L, network.size - i);
        V one = n == L ? Q::load(&g[i]) : Q::load(&g[i], n);
        if (mask) one *= n == L ? Q::load(mask + i) : Q::load(mask + i, n);
        sum += one * one;
      }
      for (int l = 0; l < L; l++) squares += sum[l];
    }
    return T(std::sqrt(squares));
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
