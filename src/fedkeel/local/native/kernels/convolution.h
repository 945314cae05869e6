// Convolutions with stride 1 on images that lie side by side in the lanes of vectors.
//
// A batch of images is [channel][row][column] of vectors; lane l belongs to sample l. A filter's weight is the same for
// all samples, so every operation is a vector times a number. The inner loop computes 2x2 pixels of several outputs at
// once, with all sums in registers: each vector that it loads serves several outputs, each weight four pixels.
#pragma once
#include <algorithm>

#include "vectors.h"

namespace fedkeel {

// Where images lie: strides in vectors.
struct Strides {
  long row, channel;
};

// y[o] = sum over c of x[c] correlated with w[o][c].
struct Correlation {
  int inputs, outputs, k;
  int height, width;      // of y
  Strides x;              // whose first pixel meets weight (0, 0) for y's first pixel
  int top, left;          // where the part of x begins that is not zero: weights that meet only zeros are skipped
  int rows, columns;      // of that part
};

template <class T> struct Convolution : Vectors<T> {
  typedef Vectors<T> Q;
  typedef typename Q::V V;
  typedef typename Q::I I;
  static constexpr int L = Q::L;
  static constexpr int OUTPUTS = SUMS / 4;  // that are computed at once, for 2x2 pixels

  // Weights [outputs][inputs][k][k] in the order in which `correlate` reads them: block by block of outputs, and
  // within a block those of one (input, row, column) side by side. `turned`: as the way back needs them, from inputs to
  // outputs, upside down and mirrored.
  static void pack(const T* w, int outputs, int inputs, int k, T* to, bool turned = false) {
    const int kk = k * k;
    in_blocks<OUTPUTS>(outputs, [&](auto n, int first) {
      constexpr int N = decltype(n)::value;
      T* at = to + (long)first * inputs * kk;
      for (int c = 0; c < inputs; c++)
        for (int t = 0; t < kk; t++)
          FK_UNROLL for (int o = 0; o < N; o++)
            *at++ = turned ? w[((long)c * outputs + first + o) * kk + kk - 1 - t]
                           : w[((long)(first + o) * inputs + c) * kk + t];
    });
  }

  // put(o, i, j, sums) for all outputs o and tiles of 2x2 pixels at (i, j); at an odd side, the last tiles overlap.
  template <class Put>
  static void correlate(const Correlation& d, const V* x, const T* packed, const T* bias, Put put) {
    for (int ii = 0; ii < d.height; ii += 2) {
      const int i = std::max(0, std::min(ii, d.height - 2));
      const int ky0 = std::max(0, d.top - 1 - i), ky1 = std::min(d.k, d.top + d.rows - i);
      in_blocks<OUTPUTS>(d.outputs, [&](auto n, int first) {
        constexpr int N = decltype(n)::value;
        const T* w = packed + (long)first * d.inputs * d.k * d.k;
        for (int jj = 0; jj < d.width; jj += 2) {
          const int j = std::max(0, std::min(jj, d.width - 2));
          const int kx0 = std::max(0, d.left - 1 - j), kx1 = std::min(d.k, d.left + d.columns - j);
          V sums[N][4];
          FK_UNROLL for (int o = 0; o < N; o++) {
            const V b = Q::all(bias ? bias[first + o] : T(0));
            FK_UNROLL for (int p = 0; p < 4; p++) sums[o][p] = b;
          }
          tile<N>(sums, x + i * d.x.row + j, d.x, w, d.inputs, d.k, ky0, ky1, kx0, kx1);
          FK_UNROLL for (int o = 0; o < N; o++) put(first + o, i, j, sums[o]);
        }
      });
    }
  }

  template <int N>
  FK_INLINE void tile(V (&sums)[N][4], const V* x, Strides d, const T* w, int inputs, int k, int ky0, int ky1, int kx0,
                      int kx1) {
    for (int c = 0; c < inputs; c++, x += d.channel, w += k * k * N)
      for (int ky = ky0; ky < ky1; ky++) {
        const V* p = x + ky * d.row + kx0;
        const T *q = w + (ky * k + kx0) * N, *end = q + (kx1 - kx0) * N;
        for (; q < end; q += N, p++) {
          V s[N];
          FK_APART;
          FK_UNROLL for (int o = 0; o < N; o++) s[o] = Q::all(q[o]);
          FK_UNROLL for (int n = 0; n < 4; n++) {
            const V v = p[n / 2 * d.row + n % 2];
            FK_UNROLL for (int o = 0; o < N; o++) sums[o][n] += s[o] * v;
          }
        }
      }
  }

  // dw[o][c][ky][kx] += sum over batches, pixels and lanes of g[o] times x[c] moved by (ky, kx).
  struct Filters {
    int inputs, outputs, k, pad;
    int height, width;            // of g
    int rows;                     // of x without its padding
    Strides x, g;
    int batches;
    long next_x, next_g;          // from one batch of images to the next
  };

  static void filter_gradient(const Filters& d, const V* x, const V* g, T* dw) {
    [&]<int... n>(std::integer_sequence<int, n...>) {
      (void)((d.k == n + 1 && (all_filters<n + 1>(d, x, g, dw), true)) || ...);
    }(std::make_integer_sequence<int, 7>{});
  }

  template <int K> static void all_filters(const Filters& d, const V* x, const V* g, T* dw) {
    constexpr int MOST = std::max(1, std::min(8, SUMS / K));
    const long filter = (long)d.inputs * K * K;
    in_blocks<MOST>(d.outputs, [&](auto n, int first) {
      for (int c = 0; c < d.inputs; c++)
        for (int ky = 0; ky < K; ky++) {
          const V *seen = x + c * d.x.channel + ky * d.x.row, *mine = g + first * d.g.channel;
          filter_row<decltype(n)::value, K>(d, seen, mine, ky, dw + first * filter + (c * K + ky) * K, filter);
        }
    });
  }

  template <int N, int K> static void filter_row(const Filters& d, const V* x, const V* g, int ky, T* dw, long filter) {
    V sums[N][K] = {};
    const int first = std::max(0, d.pad - ky), last = std::min(d.height, d.pad + d.rows - ky);  // others meet zeros
    for (int s = 0; s < d.batches; s++)
      for (int i = first; i < last; i++) {
        const V *p = x + s * d.next_x + i * d.x.row, *q = g + s * d.next_g + i * d.g.row;
        for (int j = 0; j < d.width; j++) {
          V v[K];
          FK_UNROLL for (int n = 0; n < K; n++) v[n] = p[j + n];
          FK_UNROLL for (int o = 0; o < N; o++) {
            const V one = q[o * d.g.channel + j];
            FK_UNROLL for (int n = 0; n < K; n++) sums[o][n] += one * v[n];
          }
        }
      }
    constexpr int COUNT = (N * K + L - 1) / L * L;
    V some[COUNT] = {};
    FK_UNROLL for (int o = 0; o < N; o++)
      FK_UNROLL for (int n = 0; n < K; n++) some[o * K + n] = sums[o][n];
    T added[COUNT];
    for (int at = 0; at < COUNT; at += L) Q::store(added + at, Q::sums(*(V(*)[L])(some + at)));
    for (int o = 0; o < N; o++)
      for (int n = 0; n < K; n++) dw[o * filter + n] += added[o * K + n];
  }
};

}  // namespace fedkeel
