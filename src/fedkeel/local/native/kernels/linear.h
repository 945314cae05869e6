// Fully connected layers: products of a matrix of weights with samples in lanes, and its gradient.
#pragma once
#include <algorithm>
#include <cstring>

#include "vectors.h"

namespace fedkeel {

template <class T> struct Linear : Vectors<T> {
  typedef Vectors<T> Q;
  typedef typename Q::V V;
  static constexpr int L = Q::L;

  // y[s][o] = bias[o] + sum over t of w[o * across + t * along] x[s][t], for `batches` of L samples.
  struct Product {
    int outputs, inputs, batches;
    long across, along;
    long next_x, next_y;  // from one batch to the next
  };

  static void product(const Product& d, const T* w, const V* x, const T* bias, V* y) {
    for (int s = 0; s < d.batches;) {
      const int some = std::min(4, d.batches - s);
      const V* from = x + s * d.next_x;
      V* to = y + s * d.next_y;
      if (some == 4) batches<4>(d, w, from, bias, to);
      else if (some == 3) batches<3>(d, w, from, bias, to);
      else if (some == 2) batches<2>(d, w, from, bias, to);
      else batches<1>(d, w, from, bias, to);
      s += some;
    }
  }

  template <int S> static void batches(const Product& d, const T* w, const V* x, const T* bias, V* y) {
    constexpr int OUTPUTS = std::min(12, SUMS / S);
    // As many inputs at a time as fit well into the second-level cache; with fewer, rows of weights come in short pieces.
    const int most = std::max(32, int(65536 / (S * sizeof(V)))), parts = (d.inputs + most - 1) / most;
    for (int part = 0, t = 0; part < parts; part++) {
      const int n = (d.inputs - t) / (parts - part);
      in_blocks<OUTPUTS>(d.outputs, [&](auto block, int o) {
        const T* first = bias && !t ? bias + o : nullptr;
        tile<decltype(block)::value, S>(d, w + o * d.across + t * d.along, x + t, n, first, t > 0, y + o);
      });
      t += n;
    }
  }

  template <int N, int S>
  FK_INLINE void tile(const Product& d, const T* w, const V* x, int n, const T* bias, bool more, V* y) {
    V sums[N][S];
    FK_UNROLL for (int o = 0; o < N; o++)
      FK_UNROLL for (int s = 0; s < S; s++) sums[o][s] = more ? y[s * d.next_y + o] : Q::all(bias ? bias[o] : T(0));
    for (int t = 0; t < n; t++, w += d.along) {
      V v[S];
      FK_UNROLL for (int s = 0; s < S; s++) v[s] = x[s * d.next_x + t];
      FK_UNROLL for (int o = 0; o < N; o++) {
        const V one = Q::all(w[o * d.across]);
        FK_UNROLL for (int s = 0; s < S; s++) sums[o][s] += one * v[s];
      }
    }
    FK_UNROLL for (int o = 0; o < N; o++)
      FK_UNROLL for (int s = 0; s < S; s++) y[s * d.next_y + o] = sums[o][s];
  }

  // The same product for up to L samples that lie apart, as `rows`, and not yet in lanes: y[o] = bias[o] + w[o] . rows.
  // `scratch` holds L vectors for every output.
  static void dots(const T* w, const T* const* rows, int samples, const T* bias, V* y, int outputs, int inputs,
                   V* scratch) {
    in_blocks<SUMS / 4>(outputs, [&](auto block, int o) {
      in_blocks<4>(samples, [&](auto some, int b) {
        dot<decltype(block)::value, decltype(some)::value>(w + (long)o * inputs, rows + b, inputs, scratch + o * L + b);
      });
    });
    for (int o = 0; o < outputs; o++) {
      V sums[L] = {};
      for (int b = 0; b < samples; b++) sums[b] = scratch[o * L + b];
      y[o] = Q::sums(sums) + (bias ? bias[o] : T(0));
    }
  }

  template <int N, int S> FK_INLINE void dot(const T* w, const T* const* rows, int inputs, V* to) {
    V sums[N][S] = {};
    const auto add = [&](auto load, int t) __attribute__((always_inline)) {
      V v[S];
      FK_UNROLL for (int s = 0; s < S; s++) v[s] = load(rows[s] + t);
      FK_UNROLL for (int o = 0; o < N; o++) {
        const V one = load(w + (long)o * inputs + t);
        FK_UNROLL for (int s = 0; s < S; s++) sums[o][s] += one * v[s];
      }
    };
    int t = 0;
    for (; t + L <= inputs; t += L) add([](const T* from) { return Q::load(from); }, t);
    if (t < inputs) add([&](const T* from) { return Q::load(from, inputs - t); }, t);
    FK_UNROLL for (int o = 0; o < N; o++)
      FK_UNROLL for (int s = 0; s < S; s++) to[o * L + s] = sums[o][s];
  }

  // to[o][i] = base[o][i] + sum over samples b of g[o][b] rows[b][i]; base may be null (zeros) or `to` itself. From one
  // output to the next of g it is `next`.
  static constexpr int COLUMNS = 256;  // that are computed at a time; `scratch` holds so many of every sample
  static void outer(const T* g, int samples, long next, const T* const* rows, const T* base, T* to, int outputs,
                    int inputs, T* scratch) {
    for (int i = 0; i < inputs; i += COLUMNS) {
      const int n = std::min(COLUMNS, inputs - i), whole = n / L * L;
      // Rows are read where they lie. What several blocks of outputs need is copied side by side first, and so is what
      // does not fill a vector.
      const int direct = outputs > SUMS / 2 ? 0 : whole;
      for (int b = 0; b < samples && direct < n; b++) {
        memcpy(scratch + b * COLUMNS + direct, rows[b] + i + direct, (n - direct) * sizeof(T));
        for (int t = n; t < COLUMNS && t % L; t++) scratch[b * COLUMNS + t] = 0;
      }
      in_blocks<SUMS / 2>(outputs, [&](auto block, int o) {
        constexpr int N = decltype(block)::value;
        const T *from = base ? base + (long)o * inputs + i : nullptr, *mine = g + o * next;
        T* at = to + (long)o * inputs + i;
        const auto column = [&](auto some, int t, int last, auto x) __attribute__((always_inline)) {
          columns<N, decltype(some)::value>(mine, samples, next, x, from ? from + t : nullptr, at + t, inputs, last);
        };
        const auto of_scratch = [&](int t) { return [=](int b) { return scratch + b * COLUMNS + t; }; };
        const auto of_rows = [&](int t) { return [=](int b) { return rows[b] + i + t; }; };
        const std::integral_constant<int, 2> two;
        const std::integral_constant<int, 1> one;
        int t = 0;
        for (; t + 2 * L <= direct; t += 2 * L) column(two, t, L, of_rows(t));
        for (; t + L <= direct; t += L) column(one, t, L, of_rows(t));
        for (; t + 2 * L <= n; t += 2 * L) column(two, t, L, of_scratch(t));
        for (; t < n; t += L) column(one, t, std::min(L, n - t), of_scratch(t));
      });
    }
  }

  // Sample b is at x(b). The last of S vectors has `some` columns.
  template <int N, int S, class X>
  FK_INLINE void columns(const T* g, int samples, long next_g, X x, const T* base, T* to, long next, int some) {
    V sums[N][S] = {};
    if (base)
      FK_UNROLL for (int o = 0; o < N; o++)
        FK_UNROLL for (int s = 0; s < S; s++)
          sums[o][s] = some == L ? Q::load(base + o * next + s * L) : Q::load(base + o * next, some);
    for (int b = 0; b < samples; b++) {
      V v[S];
      FK_UNROLL for (int s = 0; s < S; s++) v[s] = Q::load(x(b) + s * L);
      FK_UNROLL for (int o = 0; o < N; o++) {
        const V one = Q::all(g[o * next_g + b]);
        FK_UNROLL for (int s = 0; s < S; s++) sums[o][s] += one * v[s];
      }
    }
    FK_UNROLL for (int o = 0; o < N; o++)
      FK_UNROLL for (int s = 0; s < S; s++)
        if (some == L) Q::store(to + o * next + s * L, sums[o][s]);
        else Q::store(to + o * next, sums[o][s], some);
  }
};

}  // namespace fedkeel
